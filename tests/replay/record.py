"""Records the histories that the replay tests play: `python -m tests.replay.record [SHAPE …]`.

A history that is there stays what running workflows of its time look like: after a change of the workflow
record only shapes that are new, or, once no workflow from before the change can be open any more, all.
"""

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.replay.shapes import SHAPES
from tests.replay.temporal_setup_replay import open_deployment

from lucius.engines.temporal.dev_server import dev_server

HISTORIES = Path(__file__).parent / "histories"


async def record(names: list[str]) -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with dev_server(Path(folder) / "temporal.db") as server:
            for name in names:
                async with open_deployment(server) as deployment:
                    stand_in = await SHAPES[name](deployment)
                    history = await deployment.handle(stand_in).fetch_history()
                told = json.dumps(_without_places(json.loads(history.to_json())), indent=1, sort_keys=True)
                told = re.sub(r"\d+@[\w.-]+", "recorder", told)  # a worker's own queue is named after it
                (HISTORIES / f"{name}.json").write_text(told + "\n")
                print(f"{name}: {len(history.events)} events")


def _without_places(told: Any) -> Any:
    """Which machine recorded it, and from which folder, is nobody's business; no replay looks at that."""
    if isinstance(told, dict):
        return {
            name: "recorder" if name == "identity" else _without_places(value)
            for name, value in told.items()
            if name != "stackTrace"
        }
    return [_without_places(one) for one in told] if isinstance(told, list) else told


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SHAPES)))
