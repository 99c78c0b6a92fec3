"""The Python client of the public HTTP API.

In: an address, a key, commands. Out: typed answers, or a `LuciusError` that says what was refused and why.

    async with Lucius("http://127.0.0.1:8420") as lucius:
        job = await lucius.run(
            tenant_id="acme",
            request_type="OCR",
            input_ref="s3://in/letter.pdf",
            output_ref="s3://out/letter.json",
        )
        print(job.final_output)

`lucius.client.blocking.Lucius` is the same client for code that does not await. Knows the public API and
nothing of what lies behind it.
"""

from lucius.client.aio import BY_CONTENT, ByContent, Command, Lucius
from lucius.client.environment import ClientEnvironment
from lucius.client.errors import (
    JobCancelled,
    JobEnded,
    JobFailed,
    JobStillOpen,
    LuciusError,
    Unreachable,
)
from lucius.client.models import (
    Accepted,
    Answer,
    Event,
    FieldFault,
    Job,
    Page,
    Plan,
    Problem,
    Protocol,
    Step,
)
from lucius.client.wire import RetryPolicy

__all__ = [
    "BY_CONTENT",
    "Accepted",
    "Answer",
    "ByContent",
    "ClientEnvironment",
    "Command",
    "Event",
    "FieldFault",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobStillOpen",
    "Lucius",
    "LuciusError",
    "Page",
    "Plan",
    "Problem",
    "Protocol",
    "RetryPolicy",
    "Step",
    "Unreachable",
]
