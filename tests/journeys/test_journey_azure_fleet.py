"""Replicas that share nothing but an account: two APIs and two reconcilers, each with a data folder of its
own, on one Azurite and one emulated namespace, with keys from a secret. None is told which bus it runs on."""

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from azure.servicebus import ServiceBusClient
from tests.support.api_setup import envelope, reply_to

from lucius.bus.nats.server import free_port
from lucius.core.routing import LANES, lane_of, topic
from lucius_lab.emulators.azurite import Azurite
from lucius_lab.processes import PartProcess, ProcessFault

pytestmark = [pytest.mark.xdist_group("azure-local"), pytest.mark.timeout(600)]

SERVICE = "ocr"
RECEIVE_SECONDS_MAX = 60
ROUNDS_MAX = 4
SECRET_KEYS = f"november:{'n' * 32}\noctober:{'o' * 32}\n"
WEBHOOK_SECRET = f"whsec_{base64.b64encode(b'w' * 32).decode()}\n"


class Fleet:
    def __init__(self, folder: Path, env: dict[str, str], stack: ExitStack) -> None:
        self.connection = env["LUCIUS_SERVICEBUS_CONNECTION"]
        self.env = env
        self._folder, self._stack = folder, stack

    def begin(self, name: str, **env: str) -> PartProcess:
        """A part by the first word of its name, on a folder of its own."""
        kind = name.partition("-")[0]
        port = "--port" if kind == "api" else "--health-port"
        data = str(self._folder / f"data-{name}")
        part = PartProcess(
            self._folder, name, kind, "--data", data, port_option=port, env={**self.env, **env}
        )
        self._stack.callback(part.kill)
        part.begin()
        return part


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:
        azurite = Azurite(port=free_port())
        azurite.start()
        stack.callback(azurite.kill)
        emulator = subprocess.Popen(
            [sys.executable, "-m", "lucius_lab.emulators.service_bus", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(emulator.wait)
        stack.callback(emulator.terminate)
        assert emulator.stdout is not None
        env = {
            "LUCIUS_TABLE_CONNECTION": azurite.connection_string,
            "LUCIUS_SERVICEBUS_CONNECTION": emulator.stdout.readline().strip(),
        }
        emulator.stdout.close()

        def make(**more: str) -> Fleet:
            return Fleet(tmp_path, {**env, **more}, stack)

        yield make


def mounted(folder: Path) -> dict[str, str]:
    """A secret as Kubernetes mounts it: a file for each value."""
    folder.mkdir()
    (folder / "callback-keys").write_text(SECRET_KEYS)
    (folder / "webhook-secrets").write_text(WEBHOOK_SECRET)
    return {
        "LUCIUS_CALLBACK_KEYS_FILE": str(folder / "callback-keys"),
        "LUCIUS_WEBHOOK_SECRETS_FILE": str(folder / "webhook-secrets"),
    }


def post(url: str, document: dict[str, Any], token: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def tenants() -> list[str]:
    """One for each lane."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < LANES:
        number += 1
        found.setdefault(lane_of(f"tenant-{number}"), f"tenant-{number}")
    return list(found.values())


def directives(connection: str, lanes: list[int]) -> list[dict[str, Any]]:
    """By Microsoft's library alone, as a service in any language takes them."""
    taken = []
    with ServiceBusClient.from_connection_string(connection) as client:
        for lane in lanes:
            with client.get_subscription_receiver(topic(lane), SERVICE) as receiver:
                (message,) = receiver.receive_messages(1, max_wait_time=RECEIVE_SECONDS_MAX)
                receiver.complete_message(message)
            carried = (message.application_properties or {}).get(b"lane")
            assert carried == lane
            taken.append(json.loads(b"".join(message.body)))
    return taken


def test_replicas_with_folders_of_their_own(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    replicas = fleet(**mounted(tmp_path / "secret"))
    # However slow the machine is: directives wait until all of them were taken.
    apis = [replicas.begin(name, LUCIUS_ACK_TIMEOUT="30m") for name in ("api-1", "api-2")]
    for api in apis:
        api.await_up()
    # The address that a directive names for callbacks tells which reconciler has published it.
    reconcilers = [
        replicas.begin("reconciler-1", LUCIUS_PUBLIC_URL=apis[0].url),
        replicas.begin("reconciler-2", LUCIUS_PUBLIC_URL=apis[1].url),
    ]
    for reconciler in reconcilers:
        reconciler.await_up()
    publishers: set[str] = set()
    for _ in range(ROUNDS_MAX):  # the lanes are shared out a moment after the start
        publishers |= _one_job_a_lane(replicas, [api.url for api in apis])
        if len(publishers) == len(reconcilers):
            break
    assert publishers == {api.url for api in apis}
    for part in (*reconcilers, *apis):
        assert part.stop() == 0 and "Traceback" not in part.stderr
    folders = [tmp_path / f"data-{part.name}" for part in (*reconcilers, *apis)]
    assert not any((folder / "keys").exists() for folder in folders), "no replica has keys of its own"


def _one_job_a_lane(replicas: Fleet, urls: list[str]) -> set[str]:
    """Submits to one API, answers to the other than the directive names; whose directives these were."""
    jobs = {}
    for number, tenant in enumerate(tenants()):
        status, accepted = post(f"{urls[number % 2]}/v1/orchestrate", envelope(tenant_id=tenant))
        assert status == 202, accepted
        jobs[accepted["jobId"]] = lane_of(tenant)
    publishers = set()
    for directive in directives(replicas.connection, sorted(jobs.values())):
        named = directive["callback_urls"]["ack"].partition("/v1/")[0]
        publishers.add(named)
        (other,) = set(urls) - {named}
        for kind in ("ACK", "RESULT"):
            message, token = reply_to(directive, kind), directive["callback_token"]
            status, answer = post(f"{other}/v1/callbacks/{kind.lower()}", message, token)
            assert (status, answer.get("outcome")) == (200, "applied"), answer
        with urllib.request.urlopen(f"{named}/v1/jobs/{directive['jobId']}", timeout=60) as shown:
            assert json.load(shown)["state"] == "SUCCEEDED"
    return publishers


@pytest.mark.parametrize("name", ["api-2", "reconciler-2"])
def test_without_the_secret_the_second_refuses_to_start(fleet: Callable[..., Fleet], name: str) -> None:
    replicas = fleet()
    first = replicas.begin("api-1")
    first.await_up()
    with pytest.raises(ProcessFault, match="LUCIUS_CALLBACK_KEYS"):
        replicas.begin(name).await_up()
    assert first.running
