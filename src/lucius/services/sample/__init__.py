"""A one-page document with a text layer, and a short text, to try the services with."""

from importlib.resources import files
from typing import Final

NAME = "sample.pdf"


TEXT: Final = (
    "The lighthouse on Marram Point was lit for the first time in 1874. Its lamp burned oil until 1921.\n"
    "Today it runs without a keeper, and its light is seen from twenty miles out at sea.\n"
)


def sample_text() -> str:
    return TEXT


def sample_document() -> bytes:
    return files(__package__).joinpath(NAME).read_bytes()
