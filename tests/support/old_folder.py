"""Makes a data folder with jobs in every state, with whatever version of Lucius it is given.

    python -m tests.support.old_folder LAYOUT FOLDER PROGRAM...

starts `PROGRAM dev` on a folder, brings jobs into every state as clients and workers would, kills the process
and writes `FOLDER/jobs.json`: what each job was left as, and the directives that are still out. It speaks
HTTP alone, so a program of any version will do. `tests/assembly/old_folders` was made with it.
"""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

Json = Any

PROTOCOL = """
protocol_id: upgrade_v1
request_types: [UPGRADE]
steps:
  - step_type: FIRST
    service: first
    payload_key: first
    max_attempts: 3
    ack_timeout: 10m
    lease: 10m
    backoff: {publish: [0], ack: [0], result: [0, 2h]}
  - step_type: SECOND
    service: second
    payload_key: second
    max_attempts: 1
    ack_timeout: 10m
    lease: 10m
"""
# The folders age: their open jobs may not exceed their SLA, nor their ended ones be removed.
SPANS = {"LUCIUS_JOB_SLA": "3650d", "LUCIUS_RETENTION": "3650d"}


class Folder:
    def __init__(self, url: str) -> None:
        self._url = url
        self.jobs: dict[str, str] = {}
        self.out: dict[str, Json] = {}

    def post(self, path: str, body: Json = None, token: str | None = None) -> Json:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def get(self, path: str) -> Json:
        with urllib.request.urlopen(self._url + path, timeout=30) as response:
            return json.load(response)

    def submit(self, name: str) -> str:
        accepted = self.post("/v1/orchestrate", command(name))
        self.jobs[name] = accepted["jobId"]
        return str(accepted["jobId"])

    def lease(self, name: str, service: str = "first") -> Json:
        """The directive of the only job that waits for this service."""
        asked = {"service": service, "max": 1, "wait_seconds": 10}
        (directive,) = self.post("/v1/directives:lease", asked)["directives"]
        assert directive["jobId"] == self.jobs[name]
        self.out[name] = directive
        return directive

    def say(self, name: str, kind: str, **more: Json) -> None:
        directive = self.out[name]
        reply, token = reply_to(directive, kind, **more), directive["callback_token"]
        said = self.post(f"/v1/callbacks/{kind.lower()}", reply, token)
        assert said["outcome"] == "applied", said
        if kind == "RESULT":
            del self.out[name]

    def control(self, name: str, verb: str) -> None:
        self.post(f"/v1/jobs/{self.jobs[name]}:{verb}")

    def worked(self, name: str, kind: str = "ACK", service: str = "first", **more: Json) -> None:
        """A job whose worker has said this last."""
        if service == "first":
            self.submit(name)
        self.lease(name, service)
        self.say(name, kind, **more)

    def fill(self) -> None:
        # Every job here is leased before the next one is submitted.
        self.worked("processing")
        self.worked("reported", "PROGRESS", progress=40, note="page 4")
        self.submit("leased")
        self.lease("leased")
        self.worked("half", "RESULT", **done("half"))
        self.worked("half", service="second")
        self.worked("succeeded", "RESULT", **done("succeeded"))
        self.worked("succeeded", "RESULT", "second", **done("succeeded"))
        self.worked("retry", "RESULT", **failed("FAILED_RETRY"))
        self.lease("retry")
        self.say("retry", "RESULT", **failed("FAILED_RETRY"))
        self.worked("failed", "RESULT", **failed("FAILED_FINAL"))
        self.worked("exhausted", "RESULT", **done("exhausted"))
        self.worked("exhausted", "RESULT", "second", **failed("FAILED_RETRY"))
        self.worked("pausing")
        self.control("pausing", "pause")
        self.worked("cancelling")
        self.control("cancelling", "cancel")
        self.submit("paused")
        self.control("paused", "pause")
        self.submit("cancelled")
        self.control("cancelled", "cancel")
        self.worked("waiting_second", "RESULT", **done("waiting_second"))
        self.submit("waiting")


def command(name: str) -> Json:
    return {
        "tenant_id": "acme",
        "request_type": "UPGRADE",
        "idempotency_key": name,
        "input_ref": {"uri": f"s3://in/{name}"},
        "output_ref": {"uri": f"s3://out/{name}"},
        "payload": {"first": {}, "second": {}},
        "schema_version": "1",
    }


def reply_to(directive: Json, kind: str, **more: Json) -> Json:
    named = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    return named | {"type": kind, "timestamp": "2026-01-02T03:04:05Z"} | more


def done(name: str) -> Json:
    return {"status": "SUCCEEDED", "output_ref": {"uri": f"s3://out/{name}"}}


def failed(status: str) -> Json:
    return {"status": status, "error": {"code": "UNREADABLE", "message": "page 3 is not to be read"}}


def main() -> None:
    layout, folder, *program = sys.argv[1:]
    data, protocols = Path(folder) / "data", Path(folder) / "protocols"
    protocols.mkdir(parents=True)
    (protocols / "upgrade.yaml").write_text(PROTOCOL)
    options = ["--port", "0", "--data", str(data), "--services", "none", "--no-sample", "--json"]
    started = [*program, "dev", *options, "--storage", layout, "--protocols", str(protocols)]
    process = subprocess.Popen(started, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    made = Folder(json.loads(process.stdout.readline())["url"])
    try:
        made.fill()
        time.sleep(1)
        left = {name: made.get(f"/v1/jobs/{job_id}") for name, job_id in made.jobs.items()}
    finally:
        process.kill()
        process.wait()
    for name, job in left.items():
        print(f"{name:15}", job["state"], [step["state"] for step in job["steps"]])
    (Path(folder) / "jobs.json").write_text(json.dumps({"jobs": left, "directives": made.out}, indent=1))


if __name__ == "__main__":
    main()
