"""The protocols that come with Lucius, as documents in the folder beside this file.

In: the policy of a step. Out: a registry of six protocols. They are read as any other document is, so a fault
in one is a fault of the release and stops the start.
"""

from functools import lru_cache
from importlib import resources

from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.registry.catalogue import Catalogue
from lucius.registry.documents import load_document, parse_protocol


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
    folder = resources.files("lucius.registry") / "protocols"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if not entry.name.endswith(".yaml"):
            continue
        doc, problem = load_document(entry.read_bytes(), is_json=False)
        parsed = parse_protocol(doc, defaults=defaults) if problem is None else (problem,)
        if isinstance(parsed, ProtocolSpec):
            protocols.append((entry.name, parsed))
        else:
            faults.extend(f"{entry.name}: {text}" for text in parsed)
    return protocols, faults
