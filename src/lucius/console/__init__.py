"""The web page: jobs, what became of them and why, and the controls of a job.

In: the application that it stands in front of. Out: the same, with a page at `/`. The page is a client of the
public API like any other: it knows nothing that a caller with the same key could not ask for.
"""

from lucius.console.page import ConsoleApp

__all__ = ["ConsoleApp"]
