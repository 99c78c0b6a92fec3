"""A platform service with Python's standard library alone, and one fault that it is told to have.

python3 broken_service.py FAULT STATE_FOLDER. Without a fault (`none`) it keeps the contract; each fault is
one departure from it, found below by its name. The payload's member `certify` makes the work slow or fail.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

FAULT, STATE = sys.argv[1], Path(sys.argv[2])
BASE = os.environ["LUCIUS_URL"]
HEAD = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id", "correlation_id", "traceparent")
WARM_UP_SECONDS = 3.0

seen: dict[str, Any] = {}
leases: dict[str, str] = {}
lock = threading.Lock()
ending = threading.Event()
warm = FAULT != "ack-late"


def post(url: str, document: Any, token: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    while True:
        try:
            with urlopen(Request(url, json.dumps(document).encode(), headers), timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as fault:
            if fault.code < 500 or FAULT == "no-repeat":
                return fault.code, json.load(fault)
        except OSError:
            pass
        time.sleep(0.2)


def message(directive: Any, kind: str, **more: Any) -> Any:
    head = {name: directive[name] for name in HEAD}
    if FAULT == "wrong-lease":
        head["lease_id"] = leases.setdefault(directive["jobId"], directive["lease_id"])
    if FAULT == "no-trace":
        del head["traceparent"]
    if FAULT == "no-correlation":
        del head["correlation_id"]
    if FAULT == "no-tenant":
        del head["tenant_id"]
    return {**head, "type": kind, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more}


def say(directive: Any, reply: Any) -> tuple[int, Any]:
    return post(directive["callback_urls"][reply["type"].lower()], reply, directive["callback_token"])


def path_of(uri: str) -> Path:
    path = Path(unquote(urlsplit(uri).path))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def failed(status: str, code: str) -> dict[str, Any]:
    return {"status": status, "error": {"code": code, "message": "as it was asked to"}}


def work(directive: Any, stop: threading.Event) -> dict[str, Any]:
    asked = directive["payload"].get("certify")
    if asked == "slow":
        stop.wait(directive["lease_seconds"] * 3)
    if stop.is_set():
        return failed("FAILED_RETRY", "STOPPED")
    if asked == "retryable":
        return failed("FAILED_FINAL" if FAULT == "misclassified" else "FAILED_RETRY", "BUSY")
    if asked == "final":
        return failed("FAILED_RETRY" if FAULT == "never-final" else "FAILED_FINAL", "UNREADABLE")
    if FAULT == "strict-members" and "certify_unknown" in directive:
        return failed("FAILED_FINAL", "UNKNOWN_MEMBER")
    text = path_of(directive["input_ref"]["uri"]).read_text()
    step = f"{directive['step_type'].lower()}/{directive['attempt_no']}"
    if FAULT == "same-place":
        step = "output"
    uri = f"{directive['workspace_ref']['uri']}{step}/output.txt"
    for target in (uri,) if FAULT == "no-output" else (uri, directive["output_ref"]["uri"]):
        path_of(target).write_text(text.upper())
    return {"status": "SUCCEEDED", "output_ref": {"uri": uri}}


def beat(directive: Any, done: threading.Event, stop: threading.Event) -> None:
    while not done.wait(directive["lease_seconds"] * (1.5 if FAULT == "silent" else 1 / 3)):
        status, answer = say(directive, message(directive, "PROGRESS", progress=10))
        heeded = ("ignores-cancel" if status == 200 else "ignores-stale") != FAULT
        if heeded and (status != 200 or answer["stop"]):
            stop.set()


def attempt(directive: Any) -> Any:
    global warm
    if not warm:
        time.sleep(WARM_UP_SECONDS)  # a model is loaded before the first ACK
        warm = True
    status, answer = say(directive, message(directive, "ACK"))
    if status != 200 and FAULT != "ignores-stale":
        return None
    done, stop = threading.Event(), threading.Event()
    if answer["stop"] and status == 200:
        stop.set()
    beating = threading.Thread(target=beat, args=(directive, done, stop))
    beating.start()
    result = work(directive, stop)
    done.set()
    beating.join()
    return message(directive, "RESULT", **result)


def carry_out(directive: Any) -> None:
    key = "-".join(str(directive[name]) for name in ("jobId", "stepId", "attempt_no", "lease_id"))
    if FAULT == "lost-result":
        if (STATE / key).exists():
            return
        (STATE / key).touch()  # taken for done before it is
    with lock:
        if key in seen and FAULT != "no-dedupe":
            result = seen[key]
            fresh = False
        else:
            seen[key] = result = None
            fresh = True
    if fresh:
        result = attempt(directive)
        with lock:
            seen[key] = result
            if result is None:
                del seen[key]
    if result is not None:
        say(directive, result)
        if FAULT == "double-result":
            say(directive, result)


def is_directive(it: Any) -> bool:
    return isinstance(it, dict) and all(isinstance(it.get(name), str) for name in ("jobId", "lease_id"))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if FAULT == "no-drain" else ending.set())
    while not ending.is_set():
        wanted = {"service": "hello", "max": 10, "wait_seconds": 0.5}
        for directive in post(f"{BASE}/v1/directives:lease", wanted)[1]["directives"]:
            if FAULT == "dies-of-poison" or is_directive(directive):
                assert directive["jobId"] and directive["lease_id"]
                threading.Thread(target=carry_out, args=(directive,)).start()


main()
