"""Servers of objects on loopback: Azurite for Blob, moto for S3, each a process of its own."""

import base64
import hashlib
import hmac
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from shutil import which
from socket import create_connection

from lucius.bus.nats.server import free_port
from lucius_lab.emulators.azurite import ACCOUNT, ACCOUNT_KEY, HOST, find_script

READY_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 10.0
LOOK_EVERY_SECONDS = 0.05
ANSWER_SECONDS_MAX = 30.0
VERSION = "2021-08-06"


@contextmanager
def running(line: Sequence[str], port: int) -> Iterator[None]:
    """Until it is left; entered once the port takes connections."""
    process = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + READY_SECONDS_MAX
        while not _takes_connections(port):
            assert process.poll() is None, f"{line[1]} ended"
            assert time.monotonic() < until, f"{line[1]} is not ready"
            time.sleep(LOOK_EVERY_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)


def _takes_connections(port: int) -> bool:
    try:
        create_connection((HOST, port)).close()
    except OSError:
        return False
    return True


@contextmanager
def azurite_blob() -> Iterator[int]:
    """Microsoft's stand-in for Blob Storage; its port."""
    port, node = free_port(), which("node")
    assert node is not None
    script = find_script().parents[1] / "blob" / Path("main.js")
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry")
    with running([node, str(script), "--blobHost", HOST, "--blobPort", str(port), *options], port):
        yield port


def blob_connection(port: int, key: str = ACCOUNT_KEY) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
        f"BlobEndpoint=http://{HOST}:{port}/{ACCOUNT};"
    )


def create_container(port: int, name: str) -> None:
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:{VERSION}\n"
    text = "PUT" + "\n" * 12 + f"{headers}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    _ask_to_create(
        f"http://{HOST}:{port}/{ACCOUNT}/{name}?restype=container",
        {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        },
    )


@contextmanager
def moto_s3() -> Iterator[int]:
    """Its port. It is not atomic when many ask at once, so nothing is raced here."""
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], port):
        yield port


def create_bucket(port: int, name: str) -> None:
    _ask_to_create(f"http://{HOST}:{port}/{name}", {})


def _ask_to_create(url: str, headers: dict[str, str]) -> None:
    asked = urllib.request.Request(url, method="PUT", headers={**headers, "Content-Length": "0"})
    with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.status in (200, 201)
