"""The composition root: the one place that knows every adapter, the clock, and chance.

In: settings, a data folder, what the process is for. Out: a Lucius that is ready to start: everything in one
process (`open_embedded`), or one part of it beside others on the same store (`open_part`).
"""

from lucius.assembly.bus import (
    MEMORY,
    NATS,
    SERVICE_BUS,
    SERVICE_BUS_EMULATOR,
    NoBus,
    address_fault,
    bus_place,
    credentials_fault,
    open_bus,
    unbrought_fault,
)
from lucius.assembly.embedded import Embedded, open_embedded, open_part
from lucius.assembly.own_servers.nats import own_nats
from lucius.assembly.process import NotShareable, Part, settle_memory
from lucius.assembly.services import InProcess

__all__ = [
    "MEMORY",
    "NATS",
    "SERVICE_BUS",
    "SERVICE_BUS_EMULATOR",
    "Embedded",
    "InProcess",
    "NoBus",
    "NotShareable",
    "Part",
    "address_fault",
    "bus_place",
    "credentials_fault",
    "open_bus",
    "open_embedded",
    "open_part",
    "own_nats",
    "settle_memory",
    "unbrought_fault",
]
