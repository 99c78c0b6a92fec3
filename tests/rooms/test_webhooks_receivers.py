"""Receivers that hang, lie, change their name or their secret; and hosts that must not stop each other."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.rooms.webhook_receiver import receiver
from tests.rooms.webhook_scene import HOST, OLD_SECRET, SECRET, Scene, opened_scene, served

from lucius.engines.webhook_address import CallbackPolicy
from lucius.engines.webhook_secrets import WebhookSecrets
from lucius.engines.webhooks import CLAIM_MS, WORKERS_PER_HOST_MAX
from lucius.ledger.webhooks import WebhookPhase


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened_scene(tmp_path) as one:
        yield one


async def test_a_host_that_hangs_keeps_few_places(scene: Scene) -> None:
    async with receiver(lambda request: None, tls=served("slow.example.com")) as slow:
        house = scene.world.house()
        for number in range(40):
            await scene.ended(house, number, f"https://slow.example.com:{slow.port}/")
        for number in range(40, 60):
            await scene.ended(house, number)
        webhooks = scene.webhooks(house, seconds=20)
        running = asyncio.create_task(webhooks.run())
        try:
            async with asyncio.timeout(15):
                while len(scene.there.received) < 20 or slow.hanging < WORKERS_PER_HOST_MAX:
                    await asyncio.sleep(0.02)
            assert slow.hanging_most == WORKERS_PER_HOST_MAX
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_running_loop_catches_up(scene: Scene) -> None:
    """More than are held at once for one host: all of them get there, without waiting for regular looks."""
    house = scene.world.house()
    ids = [await scene.ended(house, number) for number in range(80)]
    running = asyncio.create_task(scene.webhooks(house, look_every_ms=3_600_000).run())
    try:
        async with asyncio.timeout(15):
            while len(scene.there.received) < 80:
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    told = [each.headers["webhook-id"] for each in scene.there.received]
    assert sorted(told) == sorted(f"msg_{job_id}" for job_id in ids)


async def test_a_receiver_that_hangs_is_a_failed_try(scene: Scene) -> None:
    scene.there.answering = lambda request: None
    job_id = await scene.ended()
    began = time.monotonic()
    assert (await scene.send(seconds=0.3)).outcomes == {"failed": 1}
    assert time.monotonic() - began < 3
    assert await scene.phase(job_id) is WebhookPhase.PENDING


async def test_no_more_of_an_answer_is_read_than_a_little(scene: Scene) -> None:
    """An endless answer is a delivered webhook: its status was good."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    scene.there.answering = lambda request: head + b"10000\r\n" + b"x" * 65_536 + b"\r\n" + b"1\r\n"
    await scene.ended()
    began = time.monotonic()
    assert (await scene.send()).outcomes == {"delivered": 1}
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000])
async def test_a_broken_answer_is_a_failed_try(scene: Scene, answer: bytes) -> None:
    scene.there.answering = lambda request: answer
    await scene.ended()
    assert (await scene.send()).outcomes == {"failed": 1}


async def test_a_certificate_of_another_name_is_refused(scene: Scene) -> None:
    async with receiver(tls=served("other.example.com")) as other:
        await scene.ended(url=f"https://{HOST}:{other.port}/")
        assert (await scene.send()).outcomes == {"failed": 1}
        assert other.received == []


async def test_two_names_at_one_address_share_no_connection(scene: Scene) -> None:
    """A certificate is checked for the name it is for, each time."""
    webhooks = scene.webhooks(scene.world.house())
    for number, host in enumerate((HOST, HOST, "other.example.com")):
        await scene.ended(number=number, url=f"https://{host}:{scene.there.port}/")
        await webhooks.look()
        await webhooks.settle()
    assert webhooks.outcomes == {"delivered": 2, "failed": 1}
    assert scene.there.names == [HOST, HOST, "other.example.com"]


async def test_a_policy_that_became_stricter_counts(scene: Scene) -> None:
    await scene.ended()
    house = scene.world.house()
    webhooks = scene.webhooks(house)
    webhooks._courier._policy = CallbackPolicy(hosts=frozenset({"elsewhere.example.com"}))
    await webhooks.look()
    await webhooks.settle()
    assert webhooks.outcomes == {"dead": 1}
    ((_, letter),) = await webhooks.dead("", 10)
    assert letter.last_problem == "the host is not allowed"
    assert scene.there.received == []


async def test_during_a_rotation_both_secrets_verify(scene: Scene) -> None:
    scene.secrets = [SECRET, OLD_SECRET]
    await scene.ended()
    await scene.send()
    (request,) = scene.there.received
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert scene.verified(request, SECRET) == scene.verified(request, OLD_SECRET)


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


async def test_no_secret_no_webhook(scene: Scene) -> None:
    """A fault of ours, such as a secrets file that cannot be read, leaves the row for later."""
    job_id = await scene.ended()
    broken = scene.webhooks(scene.world.house())

    def unreadable() -> list[str]:
        raise ValueError("webhook-secrets.json holds no secret")

    broken._courier._secrets = unreadable
    await broken.look()
    await broken.settle()
    assert scene.there.received == []
    scene.world.clock.now_ms += CLAIM_MS
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.DELIVERED
