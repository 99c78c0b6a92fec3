"""Logical tables and keys. An adapter maps characters that its backend
refuses."""

import datetime
from functools import lru_cache
from zlib import crc32

import msgspec

HOUR_MS = 3_600_000

SEARCH_NAME_LENGTH_MAX = 64
SEARCH_NAME_END = "\x1f"  # names have no control characters

MS_MAX = 99_999_999_999_999  # 14 digits: keys of times sort as numbers do until the year 5138


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    ledger: str = "lucius_ledger"
    jobs: str = "Jobs"
    steps: str = "Steps"
    outbox: str = "Outbox"
    events: str = "Events"
    idempotency: str = "job-idempotency"
    inflight: str = "lucius_inflight"
    job_index: str = "lucius_job_index"
    due: str = "lucius_due"
    dispatch: str = "lucius_dispatch"
    dlq: str = "lucius_dlq"
    retention: str = "lucius_retention"
    webhooks: str = "lucius_webhooks"
    meta: str = "lucius_meta"


def month_of(at_ms: int) -> str:
    return _month_of_hour(at_ms // HOUR_MS)


@lru_cache(maxsize=64)
def _month_of_hour(hour: int) -> str:
    at_ms = hour * HOUR_MS
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y%m")


def month_before(month: str) -> str:
    year, number = int(month[:4]), int(month[4:])
    return f"{year - 1}12" if number == 1 else f"{year}{number - 1:02d}"


def tenant_bucket(tenant_norm: str, created_at_ms: int) -> str:
    return f"{tenant_norm}#{month_of(created_at_ms)}"


@lru_cache(maxsize=64)
def lane_partition(lane: int) -> str:
    return f"{lane:02d}"


def time_key(at_ms: int, job_id: str) -> str:
    return f"{str(at_ms).rjust(14, '0')}#{job_id}"


def newest_first_key(at_ms: int, job_id: str) -> str:
    """Sorts the newest first, in a store whose queries only go up."""
    return f"{MS_MAX - at_ms:014d}#{job_id}"


def split_time_key(key: str) -> tuple[int, str]:
    at, _, job_id = key.partition("#")
    return int(at), job_id


def tenant_list(tenant_norm: str, month: str) -> str:
    return f"tenant#{tenant_norm}#{month}"


def lane_list(lane: int, month: str) -> str:
    return f"lane#{lane_partition(lane)}#{month}"


def ended_tenant_list(state: str, tenant_norm: str, month: str) -> str:
    """Of a tenant's jobs that ended in a state that few end in."""
    return f"ended#{state}#tenant#{tenant_norm}#{month}"


def ended_lane_list(state: str, lane: int, month: str) -> str:
    return f"ended#{state}#lane#{lane_partition(lane)}#{month}"


def search_partition(lane: int) -> str:
    return f"search#{lane_partition(lane)}"


def is_search_partition(partition: str) -> bool:
    return partition.startswith("search#")


def search_name(text: str) -> str:
    """A document's or correlation id as it is searched for: by its beginning, in small letters."""
    return text.strip().lower()[:SEARCH_NAME_LENGTH_MAX]


def search_key(name: str, at_ms: int, job_id: str) -> str:
    return f"{name}{SEARCH_NAME_END}{newest_first_key(at_ms, job_id)}"


def dispatch_partition(service: str, lane: int) -> str:
    return f"{service}#{lane_partition(lane)}"


@lru_cache(maxsize=4096)
def tenant_group(tenant_norm: str) -> str:
    """What the dispatch rows of a tenant begin with, so that they stand together: of a fixed length, and
    without the signs that a tenant may have in its name."""
    return f"t{crc32(tenant_norm.encode()):08x}"


# Rows of versions that ordered the dispatch index by time alone: they sort before all groups, and form one.
NO_GROUP = ""


def end_of_group(group: str) -> str:
    """The first key that could come after all rows of a group."""
    return f"{group}$" if group else "t"


def dispatch_key(tenant_norm: str, at_ms: int, job_id: str) -> str:
    return f"{tenant_group(tenant_norm)}#{time_key(at_ms, job_id)}"


def split_dispatch_key(key: str) -> tuple[str, int, str]:
    """The group, the time and the job."""
    if not key.startswith("t"):
        return NO_GROUP, *split_time_key(key)
    group, _, rest = key.partition("#")
    return group, *split_time_key(rest)


def dlq_left_partition(lane: int) -> str:
    """Jobs that failed finally and were taken up again."""
    return f"left#{lane:02d}"
