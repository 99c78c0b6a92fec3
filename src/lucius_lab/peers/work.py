"""The work of a step, as that of the peers: what comes in is what goes out."""

from lucius.sdk import Task


async def echo(task: Task) -> dict[str, str]:
    return {"uri": task.input_uri}
