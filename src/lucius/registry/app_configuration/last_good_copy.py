"""The last good copy of App Configuration, as a file.

In: what was good, and where it came from. Out: the same, after a restart. A file appears whole or not at all;
one that cannot be read counts as none. What came from a key vault is never in it.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from lucius.registry.app_configuration.values import ConfigurationSnapshot

COPY_NAME: Final = "app-configuration.json"
COPY_BYTES_MAX: Final = 64 * 1024 * 1024
VERSION: Final = 1


class LastGoodCopy(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    source: str
    """The store and label it is a copy of: that of another one must not be served."""
    read_at_ms: int
    values: dict[str, str]
    features: dict[str, bool] = {}
    secrets: list[str] = []
    """The keys whose values are left out."""

    @property
    def reading(self) -> ConfigurationSnapshot:
        left_out = dict.fromkeys(self.secrets, "comes from a key vault, and so is not in the copy")
        return ConfigurationSnapshot(
            values=self.values,
            features=self.features,
            secret_keys=frozenset(self.secrets),
            faults=left_out,
        )

    def __repr__(self) -> str:
        return f"Copy({self.source}, {len(self.values)} values)"


def read_copy(file: Path, source: str) -> LastGoodCopy | None:
    try:
        with file.open("rb") as opened:
            copy = msgspec.json.decode(opened.read(COPY_BYTES_MAX), type=LastGoodCopy)
    except (OSError, msgspec.MsgspecError):
        return None
    return copy if copy.version == VERSION and copy.source == source else None


def write_copy(file: Path, copy: LastGoodCopy) -> None:
    """Raises `OSError`. Readable by its owner only: a protocol's defaults may be confidential."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(copy))
            opened.flush()
            os.fsync(opened.fileno())
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
