"""Azurite for development and tests: Microsoft's stand-in for Azure Storage, a process of its own on
loopback.

In: a port for tables, one for blobs if there shall be any, and a folder if anything shall be kept. Out: a
running service and the connection strings to it. Without a folder everything is gone with the process; with
one it is written there every few seconds and at an orderly end, which is good enough for trying things out.
A deployment has a storage account.
"""

import base64
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from lucius.guard import guarded
from lucius.workspace.blob import EMULATOR_KEY, EMULATOR_NAME

HOST: Final = "127.0.0.1"
ROOT_UID: Final = 0
SCRIPT: Final = Path("node_modules", "azurite", "dist", "src", "table", "main.js")
ALL_SERVICES: Final = "azurite.js"
"""Two folders above the script of the table service: tables, blobs and queues in one process."""
BLOB_VERSION: Final = "2021-08-06"
CONTAINER_MADE: Final = (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0
LOOK_EVERY_SECONDS: Final = 0.05
ACCOUNTS_VARIABLE: Final = "AZURITE_ACCOUNTS"
ACCOUNT: Final = EMULATOR_NAME
ACCOUNT_KEY: Final = EMULATOR_KEY


class AzuriteFailed(Exception):
    """Azurite cannot be found, or it ended, or did not become ready."""


def find_script(start: Path | None = None) -> Path:
    """Azurite's table service in `node_modules` beside Lucius, or else of the current folder or one above it,
    if it belongs to the user of this process: a shared folder may hold one of another user. `start`: instead
    of the current folder, and alone."""
    folder = (start or Path.cwd()).resolve()
    ours = Path(__file__).resolve().parents if start is None else ()
    for each in (*ours, folder, *folder.parents):
        if (each / SCRIPT).is_file() and (each / SCRIPT).stat().st_uid in (ROOT_UID, os.geteuid()):
            return each / SCRIPT
    raise AzuriteFailed("Azurite was not found: `npm install azurite`, or `make install-dev`")


def connection_string(port: int, key: str = ACCOUNT_KEY) -> str:
    return _connection("Table", port, key)


def blob_connection_string(port: int, key: str = ACCOUNT_KEY) -> str:
    return _connection("Blob", port, key)


def _connection(service: str, port: int, key: str) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
        f"{service}Endpoint=http://{HOST}:{port}/{ACCOUNT};"
    )


def create_container(port: int, name: str, *, now: datetime, key: str = ACCOUNT_KEY) -> None:
    """A container for blobs, unless it is there. Raises `AzuriteFailed`."""
    headers = {"x-ms-date": format_datetime(now, usegmt=True), "x-ms-version": BLOB_VERSION}
    signed = "PUT" + "\n" * 12 + "".join(f"{header}:{value}\n" for header, value in headers.items())
    signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
    headers |= {
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    connection = HTTPConnection(HOST, port, timeout=READY_SECONDS_MAX)
    try:
        connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
        status = connection.getresponse().status
    except OSError as fault:
        raise AzuriteFailed(f"its container {name} cannot be made: {type(fault).__name__}") from None
    finally:
        connection.close()
    if status not in CONTAINER_MADE:
        raise AzuriteFailed(f"its container {name} cannot be made: it answers {status}")


class Azurite:
    def __init__(
        self,
        *,
        port: int,
        blob_port: int | None = None,
        script: Path | None = None,
        folder: Path | None = None,
        key: str = ACCOUNT_KEY,
    ) -> None:
        """`blob_port`: None: there are tables alone. `key`: what opens the account, in base64; the usual one
        is publicly known."""
        self.port = port
        self.blob_port = blob_port
        self._key = key
        self._folder = folder
        self._script = script or find_script()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        return connection_string(self.port, self._key)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns once it takes connections."""
        node = shutil.which("node")
        if node is None:
            raise AzuriteFailed("node was not found on the PATH")
        # A session of its own: an interrupt at the terminal is for us, and we stop it when we are done.
        self._process = subprocess.Popen(  # noqa: S603
            guarded(
                node,
                *self._service_arguments(),
                *("--tableHost", HOST, "--tablePort", str(self.port)),
                *(["--inMemoryPersistence"] if self._folder is None else ["--location", str(self._folder)]),
                *("--skipApiVersionCheck", "--silent", "--disableTelemetry"),
                stop=signal.SIGINT,  # what makes it write down what it has not yet
                grace_seconds=STOP_SECONDS_MAX,
            ),
            stdin=subprocess.PIPE,  # it ends with us, however we end
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, ACCOUNTS_VARIABLE: f"{ACCOUNT}:{self._key}"},  # a command line can be read
            umask=0o077,
        )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _service_arguments(self) -> list[str]:
        if self.blob_port is None:
            return [str(self._script)]
        # Queues have no script that leaves them out: theirs takes any free port, and the same key.
        return [
            str(self._script.parents[1] / ALL_SERVICES),
            *("--blobHost", HOST, "--blobPort", str(self.blob_port)),
            *("--queueHost", HOST, "--queuePort", "0"),
        ]

    def stop(self) -> None:
        """Ends it in good order: an interrupt is what makes it write down what it has not yet."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.send_signal(signal.SIGINT)
                self._process.wait(STOP_SECONDS_MAX)
            self.kill()

    def kill(self) -> None:
        """Ends it, and all it kept in memory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # its guard kills it, and has seen it end
            self._process.wait(STOP_SECONDS_MAX)
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            if process.poll() is not None:
                raise AzuriteFailed(f"Azurite ended at once, with {process.returncode}")
            with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0):
                return
            time.sleep(LOOK_EVERY_SECONDS)
        raise AzuriteFailed(f"Azurite was not ready after {READY_SECONDS_MAX:.0f} s")
