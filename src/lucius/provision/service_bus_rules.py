"""The rules of a subscription in the words of `plan`, and back.

A filter for one addressee compares one application property. Written in SQL it means the same.
"""

import re
from collections.abc import Sequence
from typing import Final

from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleFilter,
    TrueRuleFilter,
)

from lucius.bus.service_bus.names import SERVICE_PROPERTY
from lucius.provision.plan import EVERYTHING, addressee, service_filter

NOTHING: Final = "nothing"
_SQL: Final = re.compile(
    rf"\s*(?:user\.)?(?:{SERVICE_PROPERTY}|\[{SERVICE_PROPERTY}\]|\"{SERVICE_PROPERTY}\")\s*=\s*'([^']*)'\s*"
)
_SQL_TRUE: Final = re.compile(r"\s*1\s*=\s*1\s*")
_OTHER_FIELDS: Final = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


def takes_of(rules: Sequence[RuleProperties]) -> str:
    return " or ".join(sorted(_takes(rule) for rule in rules)) or NOTHING


def filter_for(takes: str) -> CorrelationRuleFilter | TrueRuleFilter:
    name = addressee(takes)
    return TrueRuleFilter() if name is None else CorrelationRuleFilter(properties={SERVICE_PROPERTY: name})


def _takes(rule: RuleProperties) -> str:
    by_name = f"what the rule {rule.name} says"
    if rule.action is not None and getattr(rule.action, "sql_expression", None):
        return by_name  # it rewrites what it takes
    match rule.filter:
        case FalseRuleFilter():
            return NOTHING
        case TrueRuleFilter():
            return EVERYTHING
        case SqlRuleFilter(sql_expression=text):
            found = _SQL.fullmatch(text or "")
            if found:
                return service_filter(found[1])
            return EVERYTHING if _SQL_TRUE.fullmatch(text or "") else by_name
        case CorrelationRuleFilter(properties=properties):
            alone = list(properties or ()) == [SERVICE_PROPERTY]
            if alone and not any(getattr(rule.filter, name) for name in _OTHER_FIELDS):
                return service_filter(str((properties or {})[SERVICE_PROPERTY]))
    return by_name
