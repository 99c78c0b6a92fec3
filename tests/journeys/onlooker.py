"""A program of its own that asks a server for little, again and again, and says how long each answer took.

Arguments: the address, a key and a tenant. It ends when its standard input does; each line that it wrote
until then is a status and the seconds. In a program of its own it is not held up by what a test does.
"""

import http.client
import itertools
import json
import os
import select
import sys
import time
from urllib.parse import urlsplit

PAUSE_SECONDS = 0.05
ANSWER_SECONDS_MAX = 60


def main() -> None:
    url, key, tenant = sys.argv[1:]
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)
    for number in itertools.count():
        command = {
            "tenant_id": tenant,
            "request_type": "OCR",
            "input_ref": {"uri": f"s3://in/{os.getpid()}-{number}.pdf"},
            "output_ref": {"uri": f"s3://out/{os.getpid()}-{number}.json"},
            "payload": {},
            "schema_version": "1",
        }
        for method, path, body in (
            ("GET", "/livez", None),
            ("POST", "/v1/orchestrate", json.dumps(command)),
        ):
            began = time.monotonic()
            connection.request(method, path, body, {"authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            answer.read()
            print(answer.status, time.monotonic() - began, flush=True)
        if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            return


if __name__ == "__main__":
    main()
