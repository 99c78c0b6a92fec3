"""What is read from App Configuration, and what its documents mean.

In: texts by key, as the store has them. Out: protocols, what is decided for a tenant and what for all, or
every problem in plain words. Keys are those below `lucius/`:

    protocols/<name>    a protocol document, as in a folder
    tenants/<tenant>    {"mode": "DEFAULT" | "BURST", "burst_allowed": true | false, "inflight_max": 200}
    services            {"services": {…}}: what services may have, as in a folder
    defaults            {"mode": …, and the policy of a step: "max_attempts", "ack_timeout", "lease", …}
    settings/<NAME>     a LUCIUS_* variable, read once when a process starts
    sentinel            written last, after a change: only then is the change read
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lucius.core.budgets import Budget
from lucius.core.flow import ServiceLimits
from lucius.core.model import Json, ProtocolSpec, StepPolicy
from lucius.core.routing import normalise
from lucius.core.states import Mode
from lucius.registry.documents import load_document, parse_policy, parse_protocol
from lucius.registry.service_limits import parse_services
from lucius.registry.tenant_rules import TenantRule, parse_rule_mode, parse_tenant_rule

PREFIX: Final = "lucius/"
SENTINEL: Final = "sentinel"
DEFAULTS: Final = "defaults"
SERVICES: Final = "services"
PROTOCOLS: Final = "protocols/"
TENANTS: Final = "tenants/"
SETTINGS: Final = "settings/"
FLAG_PREFIX: Final = ".appconfig.featureflag/"
DOCUMENTS_MAX: Final = 20_000
FLAGS_MAX: Final = 2_000

# What a process must know before it can read anything here.
LEADING_HERE: Final = ("LUCIUS_APP_CONFIGURATION_", "LUCIUS_ENVIRONMENT", "LUCIUS_AZURE_")

_VARIABLE: Final = re.compile(r"LUCIUS_[A-Z0-9_]{1,64}")


class ConfigurationUnavailable(Exception):
    """The store cannot be asked. The text names the kind of fault and nothing that the store said."""


class ConfigurationSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the store has for us, read at one time."""

    values: Mapping[str, str]
    """By key, without the prefix."""
    features: Mapping[str, bool] = {}
    secret_keys: frozenset[str] = frozenset()
    """Those whose values came from a key vault: never written down, never shown."""
    faults: Mapping[str, str] = {}
    """By key: why there is no value; what was known before goes on."""
    problems: tuple[str, ...] = ()
    """That belong to no key."""

    def __repr__(self) -> str:
        return f"Reading({len(self.values)} values, {len(self.features)} features)"


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    by_name: Mapping[str, bool] = {}
    problems: tuple[str, ...] = ()


def flags_of(entries: Sequence[tuple[str, str]]) -> Flags:
    """From (key, value) as the store has them; a later one replaces an earlier one of the same name. One with
    conditions depends on the user, who is unknown here: it counts as off."""
    by_name: dict[str, bool] = {}
    problems: dict[str, str] = {}
    for key, text in entries[:FLAGS_MAX]:
        name = key.removeprefix(FLAG_PREFIX)
        problems.pop(name, None)
        try:
            flag = msgspec.json.decode(text, type=_Flag)
        except msgspec.MsgspecError:
            problems[name] = f"{key}: is not a feature flag, and counts as off"
            flag = _Flag()
        if flag.enabled and flag.conditions and flag.conditions.get("client_filters"):
            problems[name] = f"{key}: has conditions, which are not looked at, and counts as off"
            flag = _Flag()
        by_name[name] = flag.enabled
    return Flags(by_name=by_name, problems=tuple(problems.values()))


class _Flag(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = False
    conditions: dict[str, Any] | None = None


class ModeDefaults(msgspec.Struct, frozen=True, kw_only=True):
    policy: StepPolicy
    mode: Mode | None = None


class ServicesMeaning(msgspec.Struct, frozen=True):
    limits: Mapping[str, ServiceLimits]


Meaning = ProtocolSpec | TenantRule | ModeDefaults | ServicesMeaning | str


def meaning_of(key: str, text: str, policy: StepPolicy) -> Meaning | tuple[str, ...]:
    """What the text at this key says, or its problems. `policy`: for steps that say nothing of theirs."""
    if key.startswith(SETTINGS):
        return _setting(key.removeprefix(SETTINGS), text)
    is_json = text.lstrip().startswith("{")
    doc, problem = load_document(text.encode(errors="surrogatepass"), is_json=is_json)
    if problem is not None:
        return (problem,)
    if key.startswith(PROTOCOLS):
        return parse_protocol(doc, defaults=policy)
    if not isinstance(doc, dict):
        return ("the document must be an object",)
    if key.startswith(TENANTS):
        return parse_tenant_rule(doc)
    if key == DEFAULTS:
        return _defaults(doc, policy)
    if key == SERVICES:
        parsed = parse_services(doc)
        return parsed if isinstance(parsed, tuple) else ServicesMeaning(parsed)
    known = f"{PROTOCOLS}…, {TENANTS}…, {SETTINGS}…, {DEFAULTS}, {SERVICES} and {SENTINEL}"
    return (f"nothing is kept under this key; known are {known}",)


def _setting(name: str, text: str) -> str | tuple[str, ...]:
    if not _VARIABLE.fullmatch(name):
        return ("a setting is named as its variable, LUCIUS_…",)
    if name.startswith(LEADING_HERE):
        return ("leads to this store, and so is set in the environment of a process",)
    return text


def _defaults(doc: Mapping[str, Json], policy: StepPolicy) -> ModeDefaults | tuple[str, ...]:
    problems: list[str] = []
    mode = parse_rule_mode(doc, problems)
    found = parse_policy({name: doc[name] for name in doc if name != "mode"}, defaults=policy)
    if isinstance(found, tuple):
        return (*problems, *found)
    return tuple(problems) or ModeDefaults(policy=found, mode=mode)


class ModeOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What App Configuration decides for tenants; whatever it does not name is decided elsewhere."""

    global_mode: Mode | None = None
    tenant_modes: Mapping[str, Mode] = {}
    burst_allowed: Mapping[str, bool] = {}
    tenant_limits: Mapping[str, int] = {}
    tenant_budgets: Mapping[str, tuple[Budget, ...]] = {}


def overrides_of(meanings: Mapping[str, Meaning]) -> ModeOverrides:
    """Two spellings of one tenant are one tenant: the last one in order of keys holds."""
    modes: dict[str, Mode] = {}
    allowed: dict[str, bool] = {}
    limits: dict[str, int] = {}
    budgets: dict[str, tuple[Budget, ...]] = {}
    global_mode = None
    for key, meaning in sorted(meanings.items()):
        if isinstance(meaning, TenantRule):
            tenant = normalise(key.removeprefix(TENANTS))
            if meaning.mode is not None:
                modes[tenant] = meaning.mode
            if meaning.burst_allowed is not None:
                allowed[tenant] = meaning.burst_allowed
            if meaning.inflight_max is not None:
                limits[tenant] = meaning.inflight_max
            if meaning.budget is not None:
                budgets[tenant] = meaning.budget
        elif isinstance(meaning, ModeDefaults):
            global_mode = meaning.mode
    return ModeOverrides(
        global_mode=global_mode,
        tenant_modes=modes,
        burst_allowed=allowed,
        tenant_limits=limits,
        tenant_budgets=budgets,
    )
