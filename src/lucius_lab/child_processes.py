"""Python processes beside this one, for as long as a block lasts.

In: a module to run, its arguments. Out: the process. It is gone when the block is left, however that is: also
by an interrupt at the keyboard, and while the process is only just coming to be.
"""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from lucius.guard import own_environment, own_python


@asynccontextmanager
async def helper(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> AsyncIterator[Process]:
    # A task of its own: a start that is broken off half way would leave a process that is not ended.
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *own_python("-m", module, *arguments),
            env=own_environment(env),
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # an interrupt at the keyboard is for us, and we stop it
        )
    )
    try:
        yield await asyncio.shield(starting)
    finally:
        process = await starting
        # Its data is not needed: an orderly end could take as long as the requests that it still answers.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
