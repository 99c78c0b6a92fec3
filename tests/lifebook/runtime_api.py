"""The runtime API that Lambda offers to a function, as far as Amazon's own runtime client asks for it."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.lifebook.servers import TOP

ANSWER_SECONDS_MAX = 60
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:lifebook-orchestrator-worker"


class _Api(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: queue.Queue[tuple[dict[str, Any], int]] = queue.Queue()
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.over = False


class _Handler(BaseHTTPRequestHandler):
    server: _Api
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        while not self.server.over:
            try:
                event, left_ms = self.server.events.get(timeout=0.1)
            except queue.Empty:
                continue
            self._send(
                json.dumps(event).encode(),
                {
                    "Lambda-Runtime-Aws-Request-Id": "r1",
                    "Lambda-Runtime-Deadline-Ms": str(time.time_ns() // 1_000_000 + left_ms),
                    "Lambda-Runtime-Invoked-Function-Arn": FUNCTION,
                    "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700",
                    "Content-Type": "application/json",
                },
            )
            return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.answers.put((self.path.rpartition("/")[2], json.loads(body or b"null")))
        self._send(b"{}", {})

    def _send(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return None


class Function:
    """One function in one environment; called as often as wanted, as a warm Lambda is."""

    def __init__(self, api: _Api, log: Path, process: subprocess.Popen[bytes]) -> None:
        self._api = api
        self._log = log
        self._process = process

    def call(self, event: dict[str, Any], *, left_ms: int) -> Any:
        self._api.events.put((event, left_ms))
        kind, answer = self._answer()
        assert kind == "response", f"{answer}\n{self.log()}"
        return answer

    def _answer(self) -> tuple[str, Any]:
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < until and self._process.poll() is None:
            try:
                return self._api.answers.get(timeout=0.2)
            except queue.Empty:
                continue
        raise AssertionError(f"no answer; the process: {self._process.poll()}\n{self.log()}")

    def begin(self, event: dict[str, Any], *, left_ms: int) -> None:
        """A call whose answer is not waited for."""
        self._api.events.put((event, left_ms))

    def kill(self) -> None:
        """As Lambda does at the timeout of a function: nothing is finished, nothing is said."""
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")


@contextmanager
def function(handler: str, env: Mapping[str, str], folder: Path) -> Iterator[Function]:
    api = _Api()
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    log = folder / "lambda.log"
    own = {
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{api.server_port}",
        "AWS_LAMBDA_FUNCTION_NAME": "lifebook-orchestrator-worker",
        "LAMBDA_TASK_ROOT": str(TOP),
        "PYTHONPATH": str(TOP),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", handler],
            env={**env, **own},
            cwd=TOP,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield Function(api, log, process)
        finally:
            process.kill()
            process.wait()
            api.over = True
            api.shutdown()
            api.server_close()
            thread.join()
