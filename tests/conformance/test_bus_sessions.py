"""The bus over Service Bus with sessions: what every bus does alike, the core of it.

How receivers compete is another matter here; see `test_service_bus_sessions`.
"""

from collections.abc import AsyncIterator

import pytest
from tests.conformance.bus_setups import Opened, service_bus
from tests.conformance.test_bus import (  # noqa: F401 - pytest collects what is named here
    bus,
    test_a_batch_ends_with_what_is_there,
    test_a_cancelled_wait_loses_nothing,
    test_a_closed_bus_is_unavailable,
    test_a_lost_lock_settles_nothing_where_the_bus_fences,
    test_a_waiting_receiver_hears_of_a_message,
    test_an_empty_lane_gives_nothing_in_time,
    test_an_extended_lock_holds_on,
    test_every_group_gets_each_reply_once,
    test_keys_ids_and_reasons_may_be_any_text,
    test_services_and_lanes_are_apart,
    test_what_is_published_arrives_whole,
    test_who_was_cancelled_takes_nothing_from_others,
)

pytestmark = pytest.mark.xdist_group("servicebus-sessions")


@pytest.fixture
async def deployment() -> AsyncIterator[Opened]:
    async with service_bus(sessions=True) as ready:
        yield ready
