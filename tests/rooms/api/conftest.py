"""Houses to knock at, for every test of the API."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rooms.api.api_desk import desks, house, quick_house
else:
    from api_desk import desks, house, quick_house

__all__ = ["desks", "house", "quick_house"]
