"""The API as a script plays it, and a client that reaches it."""

from tests.support.client_environment import lucius_at, world
from tests.support.played_api import command_line, played_api

__all__ = ["command_line", "lucius_at", "played_api", "world"]
