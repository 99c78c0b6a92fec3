"""The key-values of the App Configuration emulator: filters, versions, conditions.

In: reads and writes with their conditions. Out: key-values and pages of them, or the status to answer with.
A version is a count of writes, so the same play gives the same ETags.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

KEY_VALUES_MAX: Final = 10_000
FILTERS_MAX: Final = 5
NO_LABEL: Final = "\0"

_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_COMMA: Final = re.compile(r"(?<!\\),")


class KeyValue(msgspec.Struct, frozen=True, kw_only=True):
    """As the wire has it."""

    etag: str
    key: str
    label: str | None = None
    content_type: str | None = None
    value: str | None = None
    tags: dict[str, str] = {}
    locked: bool = False
    last_modified: str = ""


class KeyValueBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a write brings."""

    value: str | None = None
    content_type: str | None = None
    tags: dict[str, str] = {}


class KeyValuePage(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[KeyValue, ...]
    etag: str
    after: str | None
    """Where the next page begins; None on the last one."""


class BadFilter(Exception):
    """A filter that the service would refuse with 400."""


class KeyValues:
    def __init__(self, *, page_items_max: int = 100) -> None:
        self._rows: dict[tuple[str, str], KeyValue] = {}
        self._writes = 0
        self._page_items_max = page_items_max

    def get(self, key: str, label: str | None) -> KeyValue | None:
        return self._rows.get((key, _label(label)))

    def put(self, key: str, label: str | None, body: KeyValueBody, *, now: str) -> KeyValue:
        if len(self._rows) >= KEY_VALUES_MAX and (key, _label(label)) not in self._rows:
            raise BadFilter(f"the emulator keeps {KEY_VALUES_MAX} key-values")
        self._writes += 1
        row = KeyValue(
            etag=f"v{self._writes}",
            key=key,
            label=_label(label) or None,
            content_type=body.content_type,
            value=body.value,
            tags=body.tags,
            last_modified=now,
        )
        self._rows[key, _label(label)] = row
        return row

    def delete(self, key: str, label: str | None) -> KeyValue | None:
        return self._rows.pop((key, _label(label)), None)

    def page(
        self, key_filter: str | None, label_filter: str | None, tags: Sequence[str], after: str | None
    ) -> KeyValuePage:
        """In order of key and label. Its ETag changes with any key-value on it that came, went or changed."""
        wanted_key, wanted_label = _matcher(key_filter), _matcher(label_filter)
        wanted_tags = [tag.partition("=")[::2] for tag in tags]
        found = [
            (name, row)
            for name, row in sorted(self._rows.items())
            if wanted_key(row.key) and wanted_label(row.label or "") and _tagged(row.tags, wanted_tags)
        ]
        if after is not None:
            found = [(name, row) for name, row in found if _place(name) > after]
        shown = found[: self._page_items_max]
        return KeyValuePage(
            items=tuple(row for _, row in shown),
            etag="page-" + "-".join(row.etag for _, row in shown),
            after=_place(shown[-1][0]) if len(found) > len(shown) else None,
        )


def _label(label: str | None) -> str:
    return "" if label in (None, NO_LABEL) else str(label)


def _place(name: tuple[str, str]) -> str:
    return "\0".join(name)


def _tagged(tags: Mapping[str, str], wanted: Sequence[Sequence[str]]) -> bool:
    return all(tags.get(name) == value for name, value in wanted)


def _matcher(text: str | None) -> Callable[[str], bool]:
    """`a,b*` is a or whatever begins with b; `\\,` and `\\*` are the signs themselves; `\\0` is no label."""
    if text is None or text == "*":
        return lambda _: True
    parts = _COMMA.split(text)
    if len(parts) > FILTERS_MAX:
        raise BadFilter(f"a filter has at most {FILTERS_MAX} parts")
    exact: set[str] = set()
    starts: list[str] = []
    for part in parts:
        begins = part.endswith("*") and not part.endswith("\\*")
        bare = part[:-1] if begins else part
        if "*" in _ESCAPED.sub("", bare):
            raise BadFilter("a * stands at the end of a filter only")
        plain = _ESCAPED.sub(r"\1", bare).replace(NO_LABEL, "")
        if begins:
            starts.append(plain)
        else:
            exact.add(plain)
    return lambda value: value in exact or value.startswith(tuple(starts))
