"""The API as a script plays it, for every test of the command line."""

from tests.support.played_api import command_line, played_api

__all__ = ["command_line", "played_api"]
