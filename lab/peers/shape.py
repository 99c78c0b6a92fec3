"""What the scripts of all peers share: jobs of three steps, so many at a time, and when each has ended.

A script is run by the Python of its peer's own environment, and needs that peer and nothing else:

    python PEER.py setup|worker|load URL [JOBS IN_FLIGHT TAG]

Where a peer's client can wait for the end of a job, it does. Where it cannot, the last step tells the
process that made the load, by a datagram: that is before the peer has committed the end, and costs it next
to nothing.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

STEPS = ("one", "two", "three")
WORKER_CONCURRENCY = 64
JOB_SECONDS_MAX = 120.0

_socket: socket.socket | None = None


def command(number: int) -> dict:
    """Of the size of a command of Lucius."""
    return {
        "number": number,
        "tenant_id": f"tenant-{number % 64}",
        "input_ref": {"uri": f"s3://bench/{number}.pdf"},
        "output_ref": {"uri": f"s3://bench/{number}.json"},
        "payload": {"ocr": {"language": "en"}, "sis": {"prompt": "What does it say?"}},
        "done": os.environ["PEERS_DONE"],
    }


def step(job: dict, name: str) -> dict:
    """The work of each step: what comes in is what goes out."""
    return {**job, "step": name, "output_ref": job["input_ref"]}


def told(job: dict) -> None:
    """Called where the last step is done."""
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _socket.sendto(str(job["number"]).encode(), job["done"])


def ended(job: dict) -> None:
    """Called where the client has heard of the end."""
    _ends.hear(job["number"])


def ready() -> None:
    """What a worker says once it takes work."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()


class _Ends(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.hear(int(data))

    def hear(self, number: int) -> None:
        """From any thread."""
        end = self.waiting.pop(number, None)
        if end is not None:
            end.get_loop().call_soon_threadsafe(_set, end)


def _set(end: asyncio.Future) -> None:
    if not end.done():
        end.set_result(None)


_ends = _Ends()


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


async def measured(start: Callable[[dict], Awaitable[object]], jobs: int, in_flight: int, first: int) -> None:
    """Prints how long all took, and each of them. `start` submits a job; `first` is the number of the first,
    so that no load meets the ends of another."""
    loop, numbers, latencies = asyncio.get_running_loop(), iter(range(first, first + jobs)), []
    path = os.environ["PEERS_DONE"]
    _remove(path)
    transport, _ = await loop.create_datagram_endpoint(lambda: _ends, local_addr=path, family=socket.AF_UNIX)

    async def client() -> None:
        for number in numbers:
            end = _ends.waiting[number] = loop.create_future()
            began = time.perf_counter()
            await start(command(number))
            await asyncio.wait_for(end, JOB_SECONDS_MAX)
            latencies.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    seconds = time.perf_counter() - began
    transport.close()
    sys.stdout.write(json.dumps({"jobs": jobs, "seconds": seconds, "latencies_ms": latencies}) + "\n")
    sys.stdout.flush()


def in_threads(start: Callable[[dict], object], in_flight: int) -> Callable[[dict], Awaitable[object]]:
    """For peers whose client blocks."""
    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(in_flight)

    async def started(job: dict) -> object:
        return await asyncio.get_running_loop().run_in_executor(threads, start, job)

    return started


def load_arguments() -> tuple[int, int, int]:
    jobs, in_flight, first = (int(text) for text in sys.argv[3:6])
    return jobs, in_flight, first
