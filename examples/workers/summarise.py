"""The service `summarise` with Python's standard library alone: python3 summarise.py [URL]

Without a URL, Lucius is where LUCIUS_URL says, or on this machine."""
# The addresses opened here come from Lucius, and an example may print.
# ruff: noqa: S310, T201

import json
import os
import re
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

BASE = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("LUCIUS_URL", "http://127.0.0.1:8420")


def post(url, document, token=""):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    while True:
        try:
            with urlopen(Request(url, json.dumps(document).encode(), headers), timeout=60) as answer:
                return json.load(answer)
        except HTTPError as fault:
            if fault.code < 500:  # a 409, say: asking again would change nothing
                return json.load(fault)
        except OSError as fault:  # Lucius is being restarted; what it handed out is still ours
            print(f"{url} cannot be reached: {fault}", file=sys.stderr)
        time.sleep(1)


def say(directive, kind, **more):
    message = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    message |= {"type": kind, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more}
    return post(directive["callback_urls"][kind.lower()], message, directive["callback_token"])


def summarise(directive):
    before = directive["upstream"]
    with urlopen((before[-1]["result_ref"] if before else directive["input_ref"])["uri"]) as source:
        text = source.read().decode()
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())[: directive["payload"]["sentences"]]
    # A folder for each attempt: one that was given up never overwrites its successor.
    uri = f"{directive['workspace_ref']['uri']}summarise/{directive['attempt_no']}/summary.txt"
    for target in (uri, directive["output_ref"]["uri"]):
        path = Path(unquote(urlsplit(target).path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(sentences) + "\n")
    return {"uri": uri}


while True:
    leased = post(f"{BASE}/v1/directives:lease", {"service": "summarise", "max": 1, "wait_seconds": 20})
    for directive in leased["directives"]:
        if say(directive, "ACK").get("stop"):
            continue  # cancelled, or no longer ours
        try:
            result = {"status": "SUCCEEDED", "output_ref": summarise(directive)}
        except OSError as fault:
            result = {"status": "FAILED_RETRY", "error": {"code": "INPUT_UNAVAILABLE", "message": str(fault)}}
        print(directive["jobId"], result["status"], say(directive, "RESULT", **result), flush=True)
