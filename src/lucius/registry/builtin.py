"""The protocols that come with Lucius, as documents in the file beside this one.

In: the policy of a step. Out: a registry of six protocols. They are read as any other document is, so a fault
in one is a fault of the release and stops the start.
"""

from functools import lru_cache
from importlib import resources
from typing import Final

from lucius.core.model import Json, ProtocolSpec, StepPolicy
from lucius.registry.catalogue import Catalogue
from lucius.registry.documents import load_document, parse_protocol

_FILE: Final = "builtin.yaml"
_TIMES: Final = ("lease", "max_duration")


class BuiltinRegistry(Catalogue):
    def __init__(self, *, defaults: StepPolicy | None = None) -> None:
        protocols, read_faults = _read_builtin(defaults or StepPolicy())
        super().__init__(protocols)
        faults = [*read_faults, *self.problems()]
        if faults:
            raise ValueError("; ".join(faults))


@lru_cache(maxsize=8)
def _read_builtin(defaults: StepPolicy) -> tuple[list[tuple[str, ProtocolSpec]], list[str]]:
    """Read once: the documents of a release do not change under a process."""
    protocols: list[tuple[str, ProtocolSpec]] = []
    faults: list[str] = []
    doc, problem = load_document((resources.files("lucius.registry") / _FILE).read_bytes(), is_json=False)
    if problem is not None:
        return protocols, [f"{_FILE}: {problem}"]
    for index, each in enumerate(doc["protocols"]):
        source = f"{_FILE}/{index}"
        parsed = parse_protocol(_with_times(each, defaults), defaults=defaults)
        if isinstance(parsed, ProtocolSpec):
            protocols.append((source, parsed))
        else:
            faults.extend(f"{source}: {text}" for text in parsed)
    return protocols, faults


def _with_times(doc: Json, defaults: StepPolicy) -> Json:
    """Times of a deployment's own go before those of the built-in steps, else its settings would do nothing
    for the steps that most jobs have."""
    usual = StepPolicy()
    if (defaults.lease_ms, defaults.max_duration_ms) == (usual.lease_ms, usual.max_duration_ms):
        return doc
    steps = [{name: member for name, member in step.items() if name not in _TIMES} for step in doc["steps"]]
    return {**doc, "steps": steps}
