"""Rows that cannot be read for a while, by any process: until they are written anew, or an operator restores
them. What they hold is not lost: those who judge look at the store itself."""

from collections.abc import Sequence

from lucius.ledger.store import Row

SECONDS_MIN = 0.2
SECONDS_MAX = 6.0
DAMAGED = "its checksum does not match"


class RowDamage:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], tuple[str, float]] = {}

    @property
    def any(self) -> bool:
        return bool(self._rows)

    def strike(self, table: str, partition: str, row: Row, now: float, part: float) -> None:
        """`part`: of the longest time that it lasts."""
        until = now + SECONDS_MIN + part * (SECONDS_MAX - SECONDS_MIN)
        self._rows[table, partition, row.key] = (row.etag, until)

    def seen(self, table: str, partition: str, rows: Sequence[Row], now: float) -> list[Row]:
        """The rows as a process reads them now."""
        return [self._seen(table, partition, row, now) for row in rows]

    def _seen(self, table: str, partition: str, row: Row, now: float) -> Row:
        place = (table, partition, row.key)
        struck = self._rows.get(place)
        if struck is None:
            return row
        etag, until = struck
        if row.etag != etag or now >= until:
            del self._rows[place]
            return row
        return Row(row.key, row.etag, b"", DAMAGED)
