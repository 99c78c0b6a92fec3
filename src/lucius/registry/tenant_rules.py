"""What is decided for single tenants: their mode, whether they may burst, how many jobs may be in flight.

In: a document of App Configuration, or a file of all tenants. Out: rules, or every problem in plain words.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from lucius.core.budgets import Budget, parse_budgets
from lucius.core.model import Json
from lucius.core.routing import normalise, parse_mode
from lucius.core.states import Mode
from lucius.registry.documents import load_document

INFLIGHT_MAX: Final = 1_000_000_000
TENANTS: Final = "tenants"

_MEMBERS: Final = ("budget", "burst_allowed", "inflight_max", "mode")


class TenantRule(msgspec.Struct, frozen=True, kw_only=True):
    """None: nothing is decided here."""

    mode: Mode | None = None
    burst_allowed: bool | None = None
    inflight_max: int | None = None
    budget: tuple[Budget, ...] | None = None


def parse_tenant_rule(doc: Mapping[str, Json]) -> TenantRule | tuple[str, ...]:
    problems = [_unknown(name) for name in sorted(doc.keys() - set(_MEMBERS))]
    mode = parse_rule_mode(doc, problems)
    allowed, limit = doc.get("burst_allowed"), doc.get("inflight_max")
    if allowed is not None and not isinstance(allowed, bool):
        problems.append("/burst_allowed: must be true or false")
    whole = isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit <= INFLIGHT_MAX
    if limit is not None and not whole:
        problems.append(f"/inflight_max: must be a whole number of jobs from 0 to {INFLIGHT_MAX}")
    budget: tuple[Budget, ...] | None = None
    if doc.get("budget") is not None:
        parsed = parse_budgets(doc["budget"])
        if isinstance(parsed, tuple):
            budget = parsed
        else:
            problems += parsed
    return tuple(problems) or TenantRule(mode=mode, burst_allowed=allowed, inflight_max=limit, budget=budget)


def parse_rule_mode(doc: Mapping[str, Json], problems: list[str]) -> Mode | None:
    value: Any = doc.get("mode")
    if value is None:
        return None
    mode = parse_mode(value.strip().upper()) if isinstance(value, str) else None
    if mode is None:
        problems.append("/mode: must be DEFAULT (or SAFE) or BURST")
    return mode


def parse_tenants_file(raw: bytes) -> dict[str, TenantRule] | tuple[str, ...]:
    """The rules by tenant, from JSON or YAML: `{"tenants": {"acme": {…}}}`."""
    doc, problem = load_document(raw, is_json=raw.lstrip().startswith(b"{"))
    if problem is not None:
        return (problem,)
    tenants = doc.get(TENANTS) if isinstance(doc, dict) else None
    if not isinstance(doc, dict) or not isinstance(tenants, dict) or len(doc) > 1:
        return (
            f"the document must be an object with the one member {TENANTS}, an object of rules by tenant",
        )
    rules: dict[str, TenantRule] = {}
    problems: list[str] = []
    for name, rule in tenants.items():
        tenant = normalise(name) if isinstance(name, str) else ""
        found = parse_tenant_rule(rule) if isinstance(rule, dict) else ("must be an object",)
        if not tenant or tenant in rules:
            problems.append(f"/{TENANTS}/{name}: must be the name of a tenant, and there once")
        elif isinstance(found, TenantRule):
            rules[tenant] = found
        else:
            problems += [f"/{TENANTS}/{name}{'' if text.startswith('/') else ': '}{text}" for text in found]
    return tuple(problems) or rules


def _unknown(name: str) -> str:
    close = get_close_matches(name, _MEMBERS, n=1, cutoff=0.6)
    meant = f"; was {close[0]} meant?" if close else ""
    return f"/{name}: is not known here; known are {', '.join(_MEMBERS)}{meant}"
