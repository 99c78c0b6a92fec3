"""Every shape that the life of a workflow can have. Each plays one job to its end and checks what it did on
the way; the room's tests run them, and their histories are recorded for the replay tests."""

from tests.replay import shapes_of_jobs, shapes_of_trouble
from tests.replay.shape import SHAPES

__all__ = ["SHAPES", "shapes_of_jobs", "shapes_of_trouble"]
