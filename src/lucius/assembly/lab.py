"""What the distribution `lucius-lab` offers: emulators of Azure, `lucius lab` and `lucius bench`.

In: a name. Out: the object that the lab registered under it as an entry point, or `LabMissing`, whose text
says what to install. Nothing in Lucius imports the lab.
"""

from typing import Any, Final

GROUP: Final = "lucius.lab"


class LabMissing(Exception):
    """The lab is not installed. The text says how to install it."""


def lab_offers(name: str) -> Any:
    """What the lab registered under this name. Raises `LabMissing`."""
    from importlib.metadata import entry_points  # loading it takes longer than most commands

    for point in entry_points(group=GROUP, name=name):
        return point.load()
    raise LabMissing(f"{name} comes with the lab, which is not installed: pip install 'lucius[lab]'")
