"""A one-page document with a text layer, to try the services with."""

from importlib.resources import files

NAME = "sample.pdf"


def sample_document() -> bytes:
    return files(__package__).joinpath(NAME).read_bytes()
