"""Protocols, tenant overrides and defaults from App Configuration, laid over another registry.

In: readings of the store, as they come. Out: a registry that follows them, and what they decide about modes.
A bad document is reported and changes nothing: its last good version goes on serving. A removed key takes
what it meant with it. A store that is out of reach is not empty: what was served goes on being served.
"""

from collections.abc import Callable, Mapping

import msgspec

from lucius.core.flow import ServiceLimits
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.registry.app_configuration.values import (
    DEFAULTS,
    DOCUMENTS_MAX,
    PREFIX,
    SENTINEL,
    SERVICES,
    SETTINGS,
    ConfigurationSnapshot,
    Meaning,
    ModeDefaults,
    ModeOverrides,
    ServicesMeaning,
    meaning_of,
    overrides_of,
)
from lucius.registry.catalogue import Catalogue
from lucius.registry.port import Registry


class _ProtocolEntry(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None  # as it is now; None where the store could not say
    good: str | None  # the last text that meant something
    meaning: Meaning | None  # of the good one
    problems: tuple[str, ...] = ()  # of the one that is there now

    def __repr__(self) -> str:
        return f"_Entry(problems={self.problems})"  # the text may be a secret


_UNKNOWN = _ProtocolEntry(text=None, good=None, meaning=None)


class AppConfigurationRegistry:
    def __init__(self, make_base: Callable[[StepPolicy], Registry], policy: StepPolicy) -> None:
        """`make_base`: the registry below, for given defaults of a step, as they may change here.
        `policy`: those defaults where App Configuration says nothing."""
        self._make_base = make_base
        self._own_policy = self._policy = policy
        self._base = make_base(policy)
        self._entries: dict[str, _ProtocolEntry] = {}
        self._secret_keys: frozenset[str] = frozenset()
        self._catalogue = Catalogue((), self._base.all())
        self._general: tuple[str, ...] = ()
        self.overrides = ModeOverrides()
        self._services: Mapping[str, ServiceLimits] = {}
        self.features: Mapping[str, bool] = {}
        self.trouble: str | None = None
        """Why the store cannot be asked at present."""

    def take(self, reading: ConfigurationSnapshot) -> bool:
        """Whether it says anything new."""
        before = (self._entries, self.features, self._general)
        self._general = reading.problems
        keys = self._bounded(sorted({*reading.values, *reading.faults} - {SENTINEL}))
        entries: dict[str, _ProtocolEntry] = {}
        policy = self._own_policy
        if DEFAULTS in keys:
            entries[DEFAULTS] = self._seen(DEFAULTS, reading, policy, anew=False)
            meaning = entries[DEFAULTS].meaning
            policy = meaning.policy if isinstance(meaning, ModeDefaults) else policy
        anew = policy != self._policy
        for key in keys:
            if key != DEFAULTS:
                entries[key] = self._seen(key, reading, policy, anew=anew)
        self._entries, self._secret_keys = entries, reading.secret_keys
        self.features = dict(reading.features)
        if (entries, self.features, self._general) == before:
            return False
        if anew:
            self._policy, self._base = policy, self._make_base(policy)
        self._serve()
        return True

    def _bounded(self, keys: list[str]) -> list[str]:
        if len(keys) > DOCUMENTS_MAX:
            problem = f"App Configuration has more than {DOCUMENTS_MAX} keys; the rest is not read"
            self._general = (*self._general, problem)
        return keys[:DOCUMENTS_MAX]

    def _seen(
        self, key: str, reading: ConfigurationSnapshot, policy: StepPolicy, *, anew: bool
    ) -> _ProtocolEntry:
        known = self._entries.get(key, _UNKNOWN)
        text = reading.values.get(key)
        if text is not None and text == known.text and not anew:
            return known
        found = (reading.faults[key],) if text is None else meaning_of(key, text, policy)
        if not isinstance(found, tuple):
            return _ProtocolEntry(text=text, good=text, meaning=found)
        if key in reading.secret_keys and text is not None:
            found = ("what the key vault holds is not such a document",)  # its text is not for showing
        meaning = known.meaning
        if anew and known.good is not None:
            again = meaning_of(key, known.good, policy)
            meaning = meaning if isinstance(again, tuple) else again
        if meaning is not None:
            name = f" ({meaning.protocol_id})" if isinstance(meaning, ProtocolSpec) else ""
            found = (*found, f"the last good version{name} is still served")
        problems = tuple(f"{PREFIX}{key}: {problem}" for problem in found)
        return _ProtocolEntry(text=text, good=known.good, meaning=meaning, problems=problems)

    def _serve(self) -> None:
        meanings = {key: entry.meaning for key, entry in self._entries.items() if entry.meaning is not None}
        served = [
            (f"{PREFIX}{key}", meaning)
            for key, meaning in meanings.items()
            if isinstance(meaning, ProtocolSpec)
        ]
        self._catalogue = Catalogue(served, self._base.all(), before=self._catalogue)
        self.overrides = overrides_of(meanings)
        limits = meanings.get(SERVICES)
        self._services = limits.limits if isinstance(limits, ServicesMeaning) else {}

    def good_values(self) -> dict[str, str]:
        """The last good text of every key, without what came from a key vault."""
        return {
            key: entry.good
            for key, entry in self._entries.items()
            if entry.good is not None and key not in self._secret_keys
        }

    @property
    def secret_keys(self) -> frozenset[str]:
        return self._secret_keys

    def missing_settings(self) -> list[str]:
        """The variables that are named here and have no value, not even an old one."""
        return [
            key.removeprefix(SETTINGS)
            for key, entry in self._entries.items()
            if entry.good is None and key.startswith(SETTINGS)
        ]

    def settings(self) -> dict[str, str]:
        """The variables that are set here, secrets included."""
        return {
            key.removeprefix(SETTINGS): entry.good
            for key, entry in self._entries.items()
            if entry.good is not None and key.startswith(SETTINGS)
        }

    def resolve(self, request_type: str) -> ProtocolSpec | None:
        return self._catalogue.resolve(request_type)

    def find(self, protocol_id: str) -> ProtocolSpec | None:
        return self._catalogue.find(protocol_id) or self._base.find(protocol_id)

    def all(self) -> tuple[ProtocolSpec, ...]:
        return self._catalogue.all()

    def request_types(self) -> tuple[str, ...]:
        return self._catalogue.request_types()

    def services(self) -> Mapping[str, ServiceLimits]:
        return self._services

    def problems(self) -> tuple[str, ...]:
        trouble = () if self.trouble is None else (self.trouble,)
        of_keys = (text for entry in self._entries.values() for text in entry.problems)
        return (*self._base.problems(), *trouble, *self._general, *of_keys, *self._catalogue.problems())
