"""A world for the client in which nothing is left to chance, and the client in it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.played_api import PlayedApi

from lucius.client import ClientEnvironment, Lucius


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

    def outside(self, **env: str) -> ClientEnvironment:
        return ClientEnvironment(env=env, chance=lambda: 0.5, new_key=self.new_key, sleep=self.sleep)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lucius_at(played_api: "PlayedApi", world: World) -> Callable[..., Lucius]:
    def make(**more: Any) -> Lucius:
        return Lucius(played_api.url, "", outside=world.outside(), **more)

    return make
