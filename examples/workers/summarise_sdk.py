"""The service `summarise` with the sdk: python summarise_sdk.py DATA_FOLDER [URL]

Without a URL, Lucius is where LUCIUS_URL says, or on this machine."""

import asyncio
import os
import re
import signal
import sys
import time
from pathlib import Path

from lucius.sdk import HttpTransport, Runner, Task, service
from lucius.workspace import ObjectWorkspace

FOLDER = Path(sys.argv[1])
BASE = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("LUCIUS_URL", "http://127.0.0.1:8420")


@service("summarise")
async def summarise(task: Task) -> dict[str, str]:
    source = task.upstream[-1].uri if task.upstream else None
    text = (await task.read(source or task.input_uri)).decode()
    await task.progress(50, "read")
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())[: task.payload["sentences"]]
    summary = (" ".join(sentences) + "\n").encode()
    await task.write_output(summary)
    return {"uri": await task.write_artifact("summary.txt", summary)}


async def main() -> None:
    async with HttpTransport(BASE, summarise.name) as transport:
        workspace = ObjectWorkspace([FOLDER])
        runner = Runner(summarise, transport, workspace, now_ms=lambda: time.time_ns() // 1_000_000)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, runner.stop)
        await runner.run()


asyncio.run(main())
