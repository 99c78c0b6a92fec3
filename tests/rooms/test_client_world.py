"""A world for the client in which nothing is left to chance, and the client in it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from lucius.client import Lucius, Outside

if TYPE_CHECKING:
    from tests.rooms.test_cli_played import PlayedApi

pytest_plugins = ("test_cli_played",)


class World:
    """Chance, keys and rest as the test wants them; `slept` is every pause there was."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.keys = 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def new_key(self) -> str:
        self.keys += 1
        return f"auto-{self.keys}"

    def outside(self, **env: str) -> Outside:
        return Outside(env=env, chance=lambda: 0.5, new_key=self.new_key, sleep=self.sleep)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lucius_at(played_api: "PlayedApi", world: World) -> Callable[..., Lucius]:
    def make(**more: Any) -> Lucius:
        return Lucius(played_api.url, "", outside=world.outside(), **more)

    return make
