"""What a shell offers behind Tab that only the server knows: job ids, request types, tenants.

In: the beginning of a word. Out: what it could become. The server is asked once, briefly; without an answer
there is nothing to offer, and nothing is said.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lucius.cli.context import PROFILE_ASKED, own_config_path
from lucius.cli.ids import BEGINNING_LENGTH_MIN, JOB_PREFIX
from lucius.cli.profiles import chosen_target
from lucius.cli.render import Doc, docs_in

OFFERED_MAX: Final = 50
SECONDS_MAX: Final = 2.0


def job_ids(incomplete: str) -> list[str]:
    """The newest jobs, or those whose ids begin so."""
    bare = incomplete.removeprefix(JOB_PREFIX)
    params = {"limit": str(OFFERED_MAX)}
    if not JOB_PREFIX.startswith(incomplete) and len(bare) >= BEGINNING_LENGTH_MIN:
        params["q"] = bare
    found = [str(job.get("jobId")) for job in _listed("/v1/jobs", params)]
    start = incomplete if incomplete.startswith(JOB_PREFIX[:1]) else f"{JOB_PREFIX}{incomplete}"
    return [job_id for job_id in found if job_id.startswith(start)]


def request_types(incomplete: str) -> list[str]:
    names = {
        name
        for protocol in _listed("/v1/protocols", {})
        for name in protocol.get("request_types") or ()
        if isinstance(name, str)
    }
    return sorted(name for name in names if name.startswith(incomplete.upper()))


def types_and_files(incomplete: str) -> list[str]:
    """For a place that takes either."""
    folder, _, start = incomplete.rpartition("/")
    try:
        names = [
            entry.name for entry in Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir()
        ]
    except OSError:
        names = []
    files = [f"{folder}/{name}" if "/" in incomplete else name for name in names if name.startswith(start)]
    return [*([] if "/" in incomplete else request_types(incomplete)), *sorted(files)[:OFFERED_MAX]]


def tenants(incomplete: str) -> list[str]:
    found = [str(each.get("tenant_id")) for each in _listed("/v1/tenants", {})]
    return sorted(name for name in found if name.startswith(incomplete))


def services(incomplete: str) -> list[str]:
    found = [str(each.get("service")) for each in _listed("/v1/services", {})]
    return sorted(name for name in found if name.startswith(incomplete))


def _listed(path: str, params: Mapping[str, str]) -> list[Doc]:
    from lucius.client import LuciusError, RetryPolicy
    from lucius.client.blocking import Lucius
    from lucius.tls import BadTls

    target = chosen_target(os.environ, PROFILE_ASKED.get(), path=own_config_path(), warn=_nothing)
    if isinstance(target, str):
        return []
    try:
        never = RetryPolicy(retries_max=0, unreachable=False)
        with Lucius(target.url, target.api_key or "", timeout_seconds=SECONDS_MAX, retry=never) as lucius:
            doc: Mapping[str, Any] = lucius.request("GET", path, params=params).doc
    except (LuciusError, BadTls, ValueError):
        return []
    return docs_in(doc.get("items"))


def _nothing(text: str) -> None:
    """A shell that completes shows no warnings."""
