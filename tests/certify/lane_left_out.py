"""A service on Service Bus that asks on 15 of the 16 lanes: lane_left_out.py FOLDER_OF_THE_SKELETON."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from lucius.assembly import SERVICE_BUS, open_bus
from lucius.assembly.clock_and_ids import now_ms, wall_ms
from lucius.cli.service import find_service
from lucius.core.routing import LANES, lane_of
from lucius.sdk import Runner
from lucius.sdk.bus_transport import BusTransport
from lucius.settings import read_settings
from lucius.workspace import ObjectWorkspace

# Another one than that of the first directive, whose answer shows that the service is there.
LEFT_OUT = (lane_of("certify-1") + 1) % LANES


async def main() -> None:
    os.chdir(sys.argv[1])
    settings = read_settings(os.environ)
    bus = await open_bus(SERVICE_BUS, settings)
    assert bus is not None
    served = find_service("service:handle", None)
    lanes = [lane for lane in range(LANES) if lane != LEFT_OUT]
    transport = BusTransport(bus, served.name, now_ms=wall_ms, lanes=lanes)
    workspace = ObjectWorkspace([Path(os.environ["LUCIUS_REF_FILE_ROOTS"])])
    runner = Runner(served, transport, workspace, now_ms=now_ms)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.stop)
    try:
        await runner.run()
    finally:
        await transport.aclose()
        await bus.close()


asyncio.run(main())
