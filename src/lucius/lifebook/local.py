"""DynamoDB and SQS on this machine, for development and tests: ministack, a process of its own on loopback.

In: a port. Out: a running stand-in, and the variables that lead the AWS SDK to it. What it holds is gone with
it. It stands in for AWS and is not AWS: deployments use the real thing.
"""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from lucius.lifebook.schema import REGION

HOST: Final = "127.0.0.1"
PROGRAM: Final = "ministack"
PROGRAM_VARIABLE: Final = "LIFEBOOK_MINISTACK"
OWN_ENVIRONMENT: Final = Path(".venv-aws", "bin", PROGRAM)
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0
LOOK_EVERY_SECONDS: Final = 0.05
# Any pair will do for a stand-in, but the SDK wants one.
NO_ACCOUNT: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}


class LocalAwsFailed(Exception):
    """The stand-in cannot be found, or it ended, or did not become ready."""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


def find_program(env: Mapping[str, str], start: Path | None = None) -> str:
    """Where ministack is: named by a variable, beside this Python, on the PATH, or in `.venv-aws` above
    here."""
    if named := env.get(PROGRAM_VARIABLE):
        return named
    beside = Path(sys.executable).with_name(PROGRAM)
    folder = (start or Path.cwd()).resolve()
    for each in (beside, *(above / OWN_ENVIRONMENT for above in (folder, *folder.parents))):
        if each.is_file():
            return str(each)
    found = shutil.which(PROGRAM, path=env.get("PATH"))
    if found is None:
        raise LocalAwsFailed("ministack was not found. Install it with: pip install 'lucius[aws,lab]'")
    return found


def sdk_variables(url: str) -> dict[str, str]:
    """What leads the AWS SDK to a stand-in at this address."""
    services = ("DYNAMODB", "SQS", "EVENTBRIDGE")
    return {**{f"AWS_ENDPOINT_URL_{name}": url for name in services}, "AWS_REGION": REGION, **NO_ACCOUNT}


class LocalAws:
    """One stand-in. Variables of the SDK do not reach it: it must not go looking for AWS."""

    def __init__(
        self, *, env: Mapping[str, str], port: int | None = None, output: IO[bytes] | None = None
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._program = find_program(env)
        self._env = {name: value for name, value in env.items() if not name.startswith("AWS_")}
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it takes connections."""
        own = {
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": HOST,
            "MINISTACK_HOST": HOST,
            "MINISTACK_REGION": REGION,
            "PERSIST_STATE": "0",
            "LOG_LEVEL": "WARNING",
        }
        # A session of its own: an interrupt at the terminal is for us, and we stop it when we are done.
        self._process = subprocess.Popen(  # noqa: S603
            [self._program],
            env={**self._env, **own},
            stdin=subprocess.DEVNULL,
            stdout=self._output or subprocess.DEVNULL,
            stderr=self._output or subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await_port(self.port, self._process, PROGRAM)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(STOP_SECONDS_MAX)
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
            self._process = None


def await_port(port: int, process: subprocess.Popen[bytes], name: str) -> None:
    """Returns once the process takes connections on the port."""
    until = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < until:
        if process.poll() is not None:
            raise LocalAwsFailed(f"{name} ended at once, with {process.returncode}")
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return
        time.sleep(LOOK_EVERY_SECONDS)
    raise LocalAwsFailed(f"{name} was not ready after {READY_SECONDS_MAX:.0f} s")
