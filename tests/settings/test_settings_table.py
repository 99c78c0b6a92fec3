"""The declarations: each variable once, each read where its value is used, and a page that says the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from lucius.cli.options import STORAGES
from lucius.client.target import DEFAULT_URL
from lucius.services.settings import EXTRACTIVE, HASHING, MINILM, SIS_TIMEOUT_MS, ServiceSettings
from lucius.settings import kinds
from lucius.settings.declaration import BadSetting, Setting, setting
from lucius.settings.documentation import PAGES, settings_page
from lucius.settings.services import read_service_settings
from lucius.settings.table import LEDGER, SECTIONS, TABLE, Client, ReferenceServices, Storage

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "reference" / "settings.md"
SOURCE = TOP / "src" / "lucius"

_ROW = re.compile(r"^\| `(LUCIUS_[A-Z_]+)` \|", re.MULTILINE)


def test_a_variable_is_declared_once_and_says_what_it_is() -> None:
    names = [declared.name for declared in TABLE]
    assert len(names) == len(set(names))
    for declared in TABLE:
        assert declared.name.startswith("LUCIUS_") and declared.read_by
        assert declared.help.endswith(".") and "|" not in declared.help
        assert declared.kind.form and re.match(r"(must be|is) ", declared.kind.rule)


def test_the_page_is_current_and_has_one_row_for_each() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == settings_page(), "write it with: python -m lucius.settings > docs/reference/settings.md"
    assert sorted(_ROW.findall(page)) == sorted(declared.name for declared in TABLE)
    assert {section.page for section in SECTIONS if section.page} <= PAGES.keys()


def test_each_declared_variable_is_read() -> None:
    """By its declaration, or, below the settings, by its name in the environment."""
    own = "".join((SOURCE / "settings" / f"{name}.py").read_text() for name in ("reading", "services"))
    others = "".join(
        path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.parent.name != "settings"
    )
    unread = [
        declared.name
        for section in SECTIONS
        for member, declared in vars(section).items()
        if isinstance(declared, Setting)
        and not re.search(rf"\b{section.__name__}\.{member}\b", own)
        and f'"{declared.name}"' not in others
    ]
    assert unread == []


@pytest.mark.parametrize("declared", TABLE, ids=lambda declared: declared.name)
def test_a_default_is_what_the_same_text_would_be(declared: Setting[Any]) -> None:
    assert declared.read({}) == declared.read({declared.name: "  "}) == declared.unset
    if declared.unset_is_text:
        assert declared.read({declared.name: f" {declared.unset_text} "}) == declared.unset
    else:
        assert declared.unset is None


def test_a_refusal_says_the_rule_and_repeats_no_value() -> None:
    with pytest.raises(BadSetting) as refused:
        Storage.table_account.read({"LUCIUS_TABLE_CONNECTION": "hush"})
    assert str(refused.value) == f"LUCIUS_TABLE_CONNECTION {kinds.TABLE_ACCOUNT.rule}"
    assert "hush" not in str(refused.value)


def test_a_default_that_would_be_refused_is_a_fault_of_the_table() -> None:
    with pytest.raises(ValueError, match="LUCIUS_X"):
        setting("LUCIUS_X", kinds.DURATION, "soon", LEDGER, "Nothing.")


def test_what_other_packages_know_by_themselves_is_the_same() -> None:
    """They lie below the settings, or start without loading them."""
    assert Client.url.unset == DEFAULT_URL
    assert all(Storage.backend.kind.parse(layout) == layout for layout in STORAGES)
    model = ReferenceServices.embedding_model
    assert {word for word in (HASHING, MINILM) if model.kind.parse(word)} == {HASHING, MINILM}
    assert ReferenceServices.sis_timeout.unset == SIS_TIMEOUT_MS
    assert f"`{EXTRACTIVE}`" == ReferenceServices.sis_model.unset_text
    assert read_service_settings({}) == ServiceSettings()
