"""What a declaration holds: a name, how its text is read, its default, and words for the documents."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

T = TypeVar("T")


class BadSetting(Exception):
    """A variable holds something that cannot be used. The text names it and never repeats a secret."""


class Process(StrEnum):
    """Who acts on a variable. `lucius dev` is all of them but the administration, in one process group."""

    API = "api"
    RECONCILER = "reconciler"
    ORCHESTRATOR = "orchestrator"
    INVOKER = "invoker"
    WORKER = "worker"
    SERVICE = "service run"
    ADMINISTRATION = "administration"
    """`lucius keys --data`, `doctor`, `provision`: commands that open the store or the broker."""
    COMMANDS = "client commands"
    CLIENT = "Python client"


class Kind(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How the text of a variable becomes a value."""

    form: str
    """For the documents, in two or three words."""
    parse: Callable[[str], T | None]
    """None: the text cannot be used. It is never blank, and has no spaces around it."""
    rule: str
    """What follows the variable's name when it is refused, such as `must be true or false`."""


class Setting(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One `LUCIUS_*` variable."""

    name: str
    kind: Kind[T]
    unset: T
    """The value where the variable is not set, or blank."""
    unset_text: str
    """The same for the documents: a text that could be set, or words."""
    unset_is_text: bool
    """Whether `unset_text` could be set."""
    read_by: tuple[Process, ...]
    help: str
    """One sentence."""
    spec: str
    """The paragraph of the specification that names it; empty: none does."""
    is_secret: bool

    def text(self, env: Mapping[str, str]) -> str:
        """As it is set; empty where it is not."""
        return env.get(self.name, "").strip()

    def read(self, env: Mapping[str, str]) -> T:
        text = self.text(env)
        if not text:
            return self.unset
        value = self.kind.parse(text)
        if value is None:
            raise BadSetting(f"{self.name} {self.kind.rule}")
        return value


class Section:
    """Settings that belong together, as class attributes in the order in which the documents show them."""

    title: ClassVar[str]
    about: ClassVar[str] = ""
    """Sentences above the table, in Markdown."""
    page: ClassVar[str] = ""
    """The page of the documents that says more, as `documentation.PAGES` knows it."""

    @classmethod
    def settings(cls) -> tuple[Setting[Any], ...]:
        return tuple(value for value in vars(cls).values() if isinstance(value, Setting))


def setting(
    name: str,
    kind: Kind[T],
    default: str,
    read_by: tuple[Process, ...],
    help: str,  # noqa: A002 (what it is called everywhere)
    *,
    spec: str = "",
) -> Setting[T]:
    """A variable with a default, which is read as if it were set."""
    unset = kind.parse(default)
    if unset is None:
        raise ValueError(f"the default of {name}, {default}, is refused")
    return Setting(
        name=name,
        kind=kind,
        unset=unset,
        unset_text=default,
        unset_is_text=True,
        read_by=read_by,
        help=help,
        spec=spec,
        is_secret=False,
    )


def optional(
    name: str,
    kind: Kind[T],
    read_by: tuple[Process, ...],
    help: str,  # noqa: A002
    *,
    unset: str = "–",
    spec: str = "",
    is_secret: bool = False,
) -> Setting[T | None]:
    """A variable without a default of its own. `unset`: what holds then, in words."""
    return Setting(
        name=name,
        kind=Kind[T | None](form=kind.form, parse=kind.parse, rule=kind.rule),
        unset=None,
        unset_text=unset,
        unset_is_text=False,
        read_by=read_by,
        help=help,
        spec=spec,
        is_secret=is_secret,
    )
