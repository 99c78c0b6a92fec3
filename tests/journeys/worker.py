"""A platform service that knows nothing of Lucius but its HTTP contract: lease, ACK, RESULT.

    worker.py URL SERVICE,SERVICE LOG [--behave HOW] [--threads N] [--late-ms N]

Each answer that was given is a line in LOG. HOW it misbehaves, on the first attempt of a step only:
`die` exits when it has a directive; `twice` sends the RESULT again; `late` waits before it answers; `wrong`
answers for another attempt; `nonsense` answers with garbage; `flaky` fails retryably; `silent` does nothing.

Asked to end (SIGTERM), it hears out what it has begun, and writes it down, before it does.
"""

import argparse
import http.client
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LEASE_MAX = 8
WAIT_SECONDS = 2
PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 20

Json = dict[str, Any]


class Wire:
    """One connection, opened anew whenever it breaks."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_SECONDS)

    def post(self, path: str, body: bytes, token: str | None = None) -> tuple[int, Json]:
        """Asks until there is an answer that is not a 503."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        while True:
            try:
                self._connection.request("POST", path, body, headers)
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.status != 503:
                    return answer.status, json.loads(content)
            except (OSError, http.client.HTTPException):
                self._connection.close()
            time.sleep(PAUSE_SECONDS)


class DirectiveWorker:
    """Works directives off, one after the other."""

    def __init__(self, wire: Wire, asked: argparse.Namespace, log: "Log") -> None:
        self._wire = wire
        self._asked = asked
        self._log = log

    def work(self, directive: Json) -> None:
        how = self._asked.behave if directive["attempt_no"] == 1 else "well"
        if how == "die":
            os._exit(9)
        if how == "silent":
            return
        if how == "nonsense":
            self._say(directive, "result", b"\x00 certainly not JSON {")
            self._say(directive, "result", b"[]")
            return
        if how == "wrong":
            self._reply(directive, "result", "RESULT", attempt_no=2, status="SUCCEEDED")
            return
        if not self._asked.no_ack:
            self._reply(directive, "ack", "ACK")
        if how == "late":
            time.sleep(self._asked.late_ms / 1000)
        status = "FAILED_RETRY" if how == "flaky" else "SUCCEEDED"
        output = {
            "uri": f"{directive['workspace_ref']['uri']}{directive['stepId']}/{directive['attempt_no']}"
        }
        for _ in range(2 if how == "twice" else 1):
            self._reply(directive, "result", "RESULT", status=status, output_ref=output)

    def _reply(self, directive: Json, door: str, kind: str, **more: Any) -> None:
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        message = {name: directive[name] for name in names}
        message |= {"type": kind, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more}
        self._say(directive, door, json.dumps(message).encode())

    def _say(self, directive: Json, door: str, body: bytes) -> None:
        status, answer = self._wire.post(f"/v1/callbacks/{door}", body, directive["callback_token"])
        line = {name: directive[name] for name in ("jobId", "stepId", "attempt_no", "lease_id")}
        told = {"outcome": answer.get("outcome"), "stop": answer.get("stop"), "code": answer.get("code")}
        self._log.write({**line, "door": door, "status": status, **told})


class Log:
    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, line: Json) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")  # one write: lines of threads never mix


def work_until(ending: threading.Event, asked: argparse.Namespace, service: str, log: Log) -> None:
    wire = Wire(asked.url)
    worker = DirectiveWorker(wire, asked, log)
    wanted = json.dumps({"service": service, "max": LEASE_MAX, "wait_seconds": WAIT_SECONDS}).encode()
    while not ending.is_set():
        status, answer = wire.post("/v1/directives:lease", wanted)
        if status != 200:
            raise SystemExit(f"the lease was refused: {answer}")
        for directive in answer["directives"]:
            worker.work(directive)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("services")
    parser.add_argument("log", type=Path)
    behaviours = ("well", "die", "twice", "late", "wrong", "nonsense", "flaky", "silent")
    parser.add_argument("--behave", default="well", choices=behaviours)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--late-ms", type=int, default=0)
    parser.add_argument("--no-ack", action="store_true")
    asked = parser.parse_args()
    log = Log(asked.log)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    threads = [
        threading.Thread(target=work_until, args=(ending, asked, service, log))
        for service in asked.services.split(",")
        for _ in range(asked.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
