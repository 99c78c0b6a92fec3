"""`python -m lucius_lab.emulators.service_bus --port 5672`: the emulator as a process of its own."""

import argparse
import asyncio
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec

from lucius_lab.emulators.service_bus.server import HOST, ServiceBusEmulator, serve
from lucius_lab.emulators.service_bus.topology import (
    SubscriptionRules,
    TopicRules,
    Topology,
    lucius_topology,
)

REPLY_SUBSCRIPTION = "lucius-invoker"


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lucius_lab.emulators.service_bus",
        description="A Service Bus emulator for tests: it speaks the SDK's protocol, it is not Azure. "
        "Everything is in memory. Its key is made at the start, and printed with the connection string.",
    )
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=5672, help="0: any that is free")
    parser.add_argument("--topology", type=Path, help="a JSON file of topics, subscriptions and their rules")
    parser.add_argument(
        "--reply-subscription",
        action="append",
        help=f"who gets the replies, {REPLY_SUBSCRIPTION} unless given; may be given several times",
    )
    parser.add_argument("--lock-ms", type=int, default=30_000)
    parser.add_argument("--deliveries-max", type=int, default=10)
    parser.add_argument("--sessions", action="store_true", help="subscriptions require sessions")
    parser.add_argument("--duplicates-ms", type=int, default=600_000)
    parser.add_argument("--drop-every-seconds", type=float, help="cut all connections again and again")
    return parser.parse_args(words)


def _topology(asked: argparse.Namespace) -> Topology:
    if asked.topology is not None:
        return msgspec.json.decode(asked.topology.read_bytes(), type=Topology)
    return lucius_topology(
        reply_groups=asked.reply_subscription or [REPLY_SUBSCRIPTION],
        subscription=SubscriptionRules(
            lock_ms=asked.lock_ms, deliveries_max=asked.deliveries_max, sessions=asked.sessions
        ),
        topic_rules=TopicRules(duplicates_ms=asked.duplicates_ms),
    )


async def _run(asked: argparse.Namespace, topology: Topology) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(
        asked.host, asked.port, now_ms=_now_ms, topology=topology, key=secrets.token_urlsafe(32)
    ) as emulator:
        sys.stdout.write(f"{emulator.connection_string}\n")
        sys.stdout.flush()
        dropping = asyncio.create_task(_drop(emulator, asked.drop_every_seconds))
        await stop.wait()
        dropping.cancel()
        await asyncio.wait({dropping})


async def _drop(emulator: ServiceBusEmulator, every_seconds: float | None) -> None:
    while every_seconds:
        await asyncio.sleep(every_seconds)
        emulator.drop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    asked = _arguments(sys.argv[1:])
    try:
        topology = _topology(asked)
    except (OSError, msgspec.DecodeError) as fault:
        sys.stderr.write(f"Cannot use {asked.topology}: {fault}\n")
        return 2
    asyncio.run(_run(asked, topology))
    return 0


if __name__ == "__main__":
    sys.exit(main())
