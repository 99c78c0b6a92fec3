"""Receivers that hang, lie, change their name or their secret; and hosts that must not stop each other."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.webhook_receiver import receiver
from tests.support.webhook_setup import HOST, OLD_SECRET, SECRET, Setup, opened_setup, served

from lucius.engines.webhooks.address import CallbackPolicy
from lucius.engines.webhooks.delivery import CLAIM_MS, WORKERS_PER_HOST_MAX
from lucius.engines.webhooks.secrets import WebhookSecrets
from lucius.ledger.webhooks import WebhookPhase


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened_setup(tmp_path) as one:
        yield one


async def test_a_host_that_hangs_keeps_few_places(setup: Setup) -> None:
    async with receiver(lambda request: None, tls=served("slow.example.com")) as slow:
        deployment = setup.world.deployment()
        for number in range(40):
            await setup.ended(deployment, number, f"https://slow.example.com:{slow.port}/")
        for number in range(40, 60):
            await setup.ended(deployment, number)
        webhooks = setup.webhooks(deployment, seconds=20)
        running = asyncio.create_task(webhooks.run())
        try:
            async with asyncio.timeout(15):
                while len(setup.there.received) < 20 or slow.hanging < WORKERS_PER_HOST_MAX:
                    await asyncio.sleep(0.02)
            assert slow.hanging_most == WORKERS_PER_HOST_MAX
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_running_loop_catches_up(setup: Setup) -> None:
    """More than are held at once for one host: all of them get there, without waiting for regular looks."""
    deployment = setup.world.deployment()
    ids = [await setup.ended(deployment, number) for number in range(80)]
    running = asyncio.create_task(setup.webhooks(deployment, look_every_ms=3_600_000).run())
    try:
        async with asyncio.timeout(15):
            while len(setup.there.received) < 80:
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    told = [each.headers["webhook-id"] for each in setup.there.received]
    assert sorted(told) == sorted(f"msg_{job_id}" for job_id in ids)


async def test_a_receiver_that_hangs_is_a_failed_try(setup: Setup) -> None:
    setup.there.answering = lambda request: None
    job_id = await setup.ended()
    began = time.monotonic()
    assert (await setup.send(seconds=0.3)).outcomes == {"failed": 1}
    assert time.monotonic() - began < 3
    assert await setup.phase(job_id) is WebhookPhase.PENDING


async def test_no_more_of_an_answer_is_read_than_a_little(setup: Setup) -> None:
    """An endless answer is a delivered webhook: its status was good."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    setup.there.answering = lambda request: head + b"10000\r\n" + b"x" * 65_536 + b"\r\n" + b"1\r\n"
    await setup.ended()
    began = time.monotonic()
    assert (await setup.send()).outcomes == {"delivered": 1}
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000])
async def test_a_broken_answer_is_a_failed_try(setup: Setup, answer: bytes) -> None:
    setup.there.answering = lambda request: answer
    await setup.ended()
    assert (await setup.send()).outcomes == {"failed": 1}


async def test_a_certificate_of_another_name_is_refused(setup: Setup) -> None:
    async with receiver(tls=served("other.example.com")) as other:
        await setup.ended(url=f"https://{HOST}:{other.port}/")
        assert (await setup.send()).outcomes == {"failed": 1}
        assert other.received == []


async def test_two_names_at_one_address_share_no_connection(setup: Setup) -> None:
    """A certificate is checked for the name it is for, each time."""
    webhooks = setup.webhooks(setup.world.deployment())
    for number, host in enumerate((HOST, HOST, "other.example.com")):
        await setup.ended(number=number, url=f"https://{host}:{setup.there.port}/")
        await webhooks.look()
        await webhooks.settle()
    assert webhooks.outcomes == {"delivered": 2, "failed": 1}
    assert setup.there.names == [HOST, HOST, "other.example.com"]


async def test_a_policy_that_became_stricter_counts(setup: Setup) -> None:
    await setup.ended()
    deployment = setup.world.deployment()
    webhooks = setup.webhooks(deployment)
    webhooks._webhook_sender._policy = CallbackPolicy(hosts=frozenset({"elsewhere.example.com"}))
    await webhooks.look()
    await webhooks.settle()
    assert webhooks.outcomes == {"dead": 1}
    ((_, letter),) = await webhooks.dead("", 10)
    assert letter.last_problem == "the host is not allowed"
    assert setup.there.received == []


async def test_during_a_rotation_both_secrets_verify(setup: Setup) -> None:
    setup.secrets = [SECRET, OLD_SECRET]
    await setup.ended()
    await setup.send()
    (request,) = setup.there.received
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert setup.verified(request, SECRET) == setup.verified(request, OLD_SECRET)


def test_secrets_are_made_once_kept_private_and_rotate(tmp_path: Path) -> None:
    numbers = iter(range(1, 100))
    folder = tmp_path / "keys"

    def chance(count: int) -> bytes:
        return bytes([next(numbers)]) * count

    server = WebhookSecrets(folder, now_ms=lambda: 1, chance=chance)
    (first,) = server.current()
    assert first.startswith("whsec_")
    assert server.current() == WebhookSecrets(folder, now_ms=lambda: 2, chance=chance).current()
    assert (folder / "webhook-secrets.json").stat().st_mode & 0o777 == 0o600
    second = WebhookSecrets(folder, now_ms=lambda: 3, chance=chance).rotate()
    assert server.current() == (second, first)  # without a new start
    third = WebhookSecrets(folder, now_ms=lambda: 4, chance=chance).rotate()
    assert server.current() == (third, second)
    assert (folder / "webhook-secrets.json").stat().st_mode & 0o777 == 0o600
    fourth = server.rotate(kept_max=1)
    assert server.current() == (fourth,)
    assert sorted(path.name for path in folder.iterdir()) == [
        "webhook-secrets.json",
        "webhook-secrets.json.lock",
    ]


async def test_no_secret_no_webhook(setup: Setup) -> None:
    """A fault of ours, such as a secrets file that cannot be read, leaves the row for later."""
    job_id = await setup.ended()
    broken = setup.webhooks(setup.world.deployment())

    def unreadable() -> list[str]:
        raise ValueError("webhook-secrets.json holds no secret")

    broken._webhook_sender._secrets = unreadable
    await broken.look()
    await broken.settle()
    assert setup.there.received == []
    setup.world.clock.now_ms += CLAIM_MS
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.DELIVERED
