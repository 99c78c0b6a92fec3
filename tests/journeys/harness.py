"""Real processes: `lucius dev` on a loopback port with a data folder, and workers that speak HTTP to it.

A process is started, killed, stopped and started again on the same data and port; what it said on stderr is
kept. Nothing here knows how Lucius is made, but that it takes long to load.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

from lucius_lab import forks

# Several servers beside it may start at the same time, on a slow machine.
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
WORKER = Path(__file__).with_name("worker.py")

_UP = re.compile(r"is up: (http://\S+?) ")


class Lucius:
    """`lucius dev` without services of its own. The first start takes a free port, later ones the same."""

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.data = folder / "data"
        self.url = ""
        self._options = options
        self._env = {**os.environ, **(env or {})}
        self._stderr = folder / "stderr.log"
        self._process: forks.Running | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        self.begin()
        self.await_ready()

    def begin(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        arguments = ["--port", port, "--data", str(self.data), "--services", "none", "--no-sample"]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self._stderr.open("ab") as stderr:
            self._process = forks.start(
                ["dev", *arguments, "--log-level", "warning", *self._options],
                env=self._env,
                folder=self.data.parent,
                out=None,
                err=stderr,
            )

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            assert self._process is not None
            assert self._process.poll() is None, f"ended with {self._process.poll()}: {self.stderr}"
            assert time.monotonic() < deadline, f"not ready: {self.stderr}"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        if not self.url:
            found = _UP.search(self.stderr)
            self.url = found[1] if found else ""
        if not self.url:
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def kill(self) -> None:
        """As a power cut would: nothing is finished, nothing is said."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def ask_to_stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> int:
        """The exit code, once it ends."""
        assert self._process is not None
        return self._process.wait(STOP_SECONDS_MAX)

    def stop(self) -> int:
        self.ask_to_stop()
        return self.ended()


class Worker:
    """One worker process; what it did is in its log, one JSON document a line."""

    def __init__(self, url: str, services: Sequence[str], log: Path, *options: str) -> None:
        self._log = log
        log.touch()
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), url, ",".join(services), str(log), *options],
            stdout=subprocess.DEVNULL,
        )

    def done(self) -> list[dict[str, Any]]:
        text = self._log.read_text(encoding="utf-8")
        # The last line may be half written.
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def lines(self) -> int:
        return self._log.read_bytes().count(b"\n")

    def finish(self) -> None:
        """Lets it hear the answers it waits for, which a ledger may know a moment before it does."""
        self.process.terminate()
        assert self.process.wait(STOP_SECONDS_MAX) == 0

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Curl:
    """Nothing but the `curl` program."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, path: str, document: Any = None, *options: str) -> tuple[int, Any]:
        """The status and the JSON of the answer; with a document it is a POST."""
        arguments = ["curl", "-sS", "--max-time", "40", "-w", "\n%{http_code}", *options]
        if document is not None:
            arguments += ["-H", "Content-Type: application/json", "-d", json.dumps(document)]
        done = subprocess.run([*arguments, self._url + path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        body, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(body)
