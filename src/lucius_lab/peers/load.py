"""The load on Lucius, in a process of its own as that on each peer.

python -m lucius_lab.peers.load PORT JOBS IN_FLIGHT FIRST
"""

import sys

import msgspec
import uvloop

from lucius_lab.bench.load import Count, complete

HOST = "127.0.0.1"
PIPELINE = "OCR_EMBEDDING_SIS"


async def _load(port: int, jobs: int, in_flight: int, tag: str) -> Count:
    return await complete(HOST, port, jobs, in_flight, PIPELINE, tag)


def main(arguments: list[str]) -> None:
    port, jobs, in_flight = (int(text) for text in arguments[:3])
    count = uvloop.run(_load(port, jobs, in_flight, f"load-{arguments[3]}"))
    sys.stdout.write(msgspec.json.encode(count).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
