"""docs/reference/ledger.md says what the declaration says, and names of columns fit every store."""

import re
from pathlib import Path

import pytest

from lucius.ledger import reference
from lucius.ledger.columns import COLUMNS, RowKind

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ledger.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "run `make docs`"


@pytest.mark.parametrize("kind", RowKind)
def test_the_names_of_a_kind_fit_every_store(kind: RowKind) -> None:
    names = [column.name for column in COLUMNS[kind]]
    assert len({name.lower() for name in names}) == len(names) <= 200
    # Azure takes no "-", and its own names and those of a row's body are taken.
    assert all(re.fullmatch("[a-z][A-Za-z_]*", name) for name in names)
    assert not {"body", "bytes", "sum", "write", "timestamp", "etag"} & {name.lower() for name in names}


def test_every_column_is_explained() -> None:
    for columns in COLUMNS.values():
        for column in columns:
            assert column.says and "|" not in column.says and not column.says.endswith("."), column.name
