"""Who gets where: every operation that the API documents, for jobs of three tenants, with eight credentials.

The operations come from the served document; one that the table below does not know fails the test. The
result is printed (`-s` shows it) and kept in docs/reference/authorization-matrix.md.
"""

from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from tests.support.api_setup import Caller, Callers, envelope
from tests.support.auth_setup import ALL_ROLES, Guarded, guarded

from lucius.api import openapi

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "authorization-matrix.md"
TENANTS = ("a", "b", "c")

IN, UNKNOWN, NOT_ALLOWED, ABSENT = "in", "401", "403", "404"

# How an operation is limited, beside its role: what a caller of other tenants is answered.
FOREIGN = {
    "job": ABSENT,
    "key": ABSENT,
    "schedule": ABSENT,
    "tenant": NOT_ALLOWED,
    "work": NOT_ALLOWED,
    "all": NOT_ALLOWED,
    "none": IN,
}
NEEDS_ALL_TENANTS = ("work", "all")

OPEN, CALLBACK = "nothing", "callback token"


class Rule(NamedTuple):
    role: str
    scope: str


RULES = {
    "orchestrate": Rule("submit", "tenant"),
    "submitCommand": Rule("submit", "tenant"),
    "orchestrateBatch": Rule("submit", "tenant"),
    "planCommand": Rule("submit", "tenant"),
    "getJob": Rule("read", "job"),
    "getSteps": Rule("read", "job"),
    "getEvents": Rule("read", "job"),
    "explainJob": Rule("read", "job"),
    "listArtifacts": Rule("read", "job"),
    "previewArtifact": Rule("read", "job"),
    "listJobs": Rule("read", "tenant"),
    "actOnJobs": Rule("control", "tenant"),
    "cancelJob": Rule("control", "job"),
    "pauseJob": Rule("control", "job"),
    "resumeJob": Rule("control", "job"),
    "rerunJob": Rule("control", "job"),
    "adoptResult": Rule("admin", "job"),
    "leaseDirectives": Rule("work", "work"),
    "ackCallback": Rule(CALLBACK, "none"),
    "progressCallback": Rule(CALLBACK, "none"),
    "resultCallback": Rule(CALLBACK, "none"),
    "getAttempt": Rule(CALLBACK, "none"),
    "retryOutbox": Rule("admin", "all"),
    "listDlq": Rule("admin", "none"),
    "redriveJob": Rule("admin", "job"),
    "listDeadWebhooks": Rule("admin", "none"),
    "redeliverWebhook": Rule("admin", "job"),
    "listKeys": Rule("admin", "none"),
    "createKey": Rule("admin", "tenant"),
    "revokeKey": Rule("admin", "key"),
    "listProtocols": Rule("read", "none"),
    "getProtocol": Rule("read", "none"),
    "getSession": Rule(OPEN, "none"),
    "getOverview": Rule("read", "none"),
    "explainFleet": Rule("read", "none"),
    "getUsage": Rule("read", "none"),
    "listServices": Rule("read", "none"),
    "listLanes": Rule("read", "none"),
    "listTenants": Rule("read", "none"),
    "countJobs": Rule("read", "tenant"),
    "streamJobs": Rule("read", "tenant"),
    "listPauses": Rule("read", "none"),
    "pauseWork": Rule("control", "tenant"),
    "resumeWork": Rule("control", "tenant"),
    "listSchedules": Rule("read", "none"),
    "writeSchedule": Rule("submit", "tenant"),
    "getSchedule": Rule("read", "schedule"),
    "pauseSchedule": Rule("control", "schedule"),
    "resumeSchedule": Rule("control", "schedule"),
    "deleteSchedule": Rule("submit", "schedule"),
    "runSchedule": Rule("submit", "schedule"),
    "backfillSchedule": Rule("submit", "schedule"),
    "livez": Rule(OPEN, "none"),
    "readyz": Rule(OPEN, "none"),
    "metrics": Rule(OPEN, "none"),
}


class Holder(NamedTuple):
    """A credential: what it is called, whether the gate knows it, and what it opens."""

    name: str
    known: bool = False
    tenants: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    services: tuple[str, ...] = ()


HOLDERS = (
    Holder("none"),
    Holder("garbage"),
    Holder("revoked"),
    Holder("a: read", True, ("a",), ("read",)),
    Holder("a: submit, control", True, ("a",), ("submit", "control")),
    Holder("b: all roles", True, ("b",), ALL_ROLES, ("*",)),
    Holder("*: work for ocr", True, ("*",), ("work",), ("ocr",)),
    Holder("*: admin", True, ("*",), ("admin",)),
)

BODIES: dict[str, Any] = {
    "leaseDirectives": {"service": "ocr"},
    "backfillSchedule": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
    "adoptResult": {"stepId": "step_01", "seq": 1},
}


class Call(NamedTuple):
    operation: str
    method: str
    path: str


def documented() -> list[Call]:
    paths = openapi.document()["paths"]
    return [
        Call(operation["operationId"], method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]


def expected(rule: Rule, holder: Holder, tenant: str) -> str:
    if rule.role == OPEN:
        return IN
    if rule.role == CALLBACK or not holder.known:
        return UNKNOWN
    if rule.role not in holder.roles:
        return NOT_ALLOWED
    sees = "*" in holder.tenants or (tenant in holder.tenants and rule.scope not in NEEDS_ALL_TENANTS)
    return IN if sees else FOREIGN[rule.scope]


def outcome(rule: Rule, response: httpx2.Response) -> str:
    """What the answer means for the caller. A refusal for a job's state was decided behind the gate."""
    document = response.json() if "json" in response.headers["content-type"] else {}
    status = response.status_code
    if status == 200 and "items" in document and document["items"] and "status" in document["items"][0]:
        status = document["items"][0]["status"]  # a batch answers for each command
    if status in (401, 403):
        return str(status)
    missing = {"job": "JOB_NOT_FOUND", "key": "NOT_FOUND", "schedule": "NOT_FOUND"}.get(rule.scope)
    if status == 404 and document.get("code") == missing:
        return ABSENT
    assert (
        status < 300
        or status == 409
        or document.get("code") in ("NOT_FOUND", "INVALID_ENVELOPE", "INVALID_REQUEST")
    ), response.text
    return IN


class Matrix:
    """A job, a finally failed job and a key of each tenant, and a client for each holder of a credential."""

    def __init__(
        self, callers: dict[str, Caller], jobs: dict[str, str], dead: dict[str, str], keys: dict[str, str]
    ) -> None:
        self.callers = callers
        self.jobs = jobs
        self.dead = dead
        self.keys = keys

    @classmethod
    async def lay_out(cls, deployment: Guarded) -> "Matrix":
        root = await deployment.holding(*ALL_ROLES)
        revoked = await deployment.key(*ALL_ROLES)
        await deployment.lucius.deployment.keys.revoke(revoked.key.key_id)
        callers = {
            "root": root,
            "none": deployment.caller(None),
            "garbage": deployment.caller("lk_0123456789abcdef_" + "0" * 64),
            "revoked": deployment.caller(revoked.text),
        }
        for holder in HOLDERS:
            if holder.known:
                callers[holder.name] = await deployment.holding(
                    *holder.roles, tenants=holder.tenants, services=holder.services
                )
        dead = {tenant: await root.submit(tenant_id=tenant) for tenant in TENANTS}
        for job_id in dead.values():
            await root.finish(job_id, "ocr", status="FAILED_FINAL")
        jobs = {tenant: await root.submit(tenant_id=tenant) for tenant in TENANTS}
        keys = {tenant: (await deployment.key("read", tenants=(tenant,))).key.key_id for tenant in TENANTS}
        return cls(callers, jobs, dead, keys)

    async def ask(self, call: Call, holder: Holder, tenant: str) -> httpx2.Response:
        caller = self.callers[holder.name]
        path = call.path
        if "{scheduleId}" in path:  # one that is there, whoever deleted it
            await self.callers["root"].post("/v1/schedules", schedule(f"of-{tenant}", tenant))
        job_id = (self.dead if call.operation == "redriveJob" else self.jobs)[tenant]
        for name, value in (
            ("jobId", job_id),
            ("job_id", job_id),
            ("keyId", self.keys[tenant]),
            ("key_id", self.keys[tenant]),
            ("protocolId", "ocr_v1"),
            ("protocol_id", "ocr_v1"),
            ("scheduleId", f"of-{tenant}"),
            ("schedule_id", f"of-{tenant}"),
        ):
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"no value for {path}"
        if call.method == "GET":
            return await caller.http.get(
                path, params={"tenant_id": tenant} if "Jobs" in call.operation else {}
            )
        return await caller.post(path, self.body(call, tenant))

    def body(self, call: Call, tenant: str) -> Any:
        if call.operation in ("orchestrate", "submitCommand", "planCommand"):
            return envelope(tenant_id=tenant)
        if call.operation == "orchestrateBatch":
            return {"commands": [envelope(tenant_id=tenant)]}
        if call.operation == "createKey":
            return {"name": "made by the matrix", "tenants": [tenant], "roles": ["read"]}
        if call.operation == "actOnJobs":
            return {"action": "resume", "filter": {"tenant_id": tenant}}
        if call.operation in ("pauseWork", "resumeWork"):
            return {"kind": "tenant", "name": tenant}
        if call.operation == "writeSchedule":
            return schedule(f"made-for-{tenant}", tenant)
        return BODIES.get(call.operation)


def schedule(schedule_id: str, tenant: str) -> dict[str, Any]:
    return {"schedule_id": schedule_id, "command": envelope(tenant_id=tenant), "at": "2126-01-01T00:00:00Z"}


def page(calls: list[Call], seen: dict[tuple[str, str], list[str]]) -> str:
    lines = [
        "# Who gets where",
        "",
        "Every operation of the API, asked about tenant `a`, `b` and `c` in turn with eight credentials.",
        "Written by a test that compares each answer with the rules of [security](../guides/security.md).",
        "",
        "`in`: past the gate. `401`: not known. `403`: not allowed. `404`: as if it did not exist. One word",
        "where the three tenants agree; else a / b / c. Callbacks take the token of their directive alone.",
        "",
        "| operation | needs | " + " | ".join(holder.name for holder in HOLDERS) + " |",
        "|---|---|" + "---|" * len(HOLDERS),
    ]
    for call in calls:
        cells = [seen[(call.operation, holder.name)] for holder in HOLDERS]
        texts = [cell[0] if len(set(cell)) == 1 else " / ".join(cell) for cell in cells]
        route = f"`{call.method} {call.path}`"
        lines.append(f"| {route} | {RULES[call.operation].role} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


async def test_every_operation_lets_in_whom_the_rules_let_in(callers: Callers) -> None:
    deployment = await guarded(callers, {"LUCIUS_ARTIFACTS": "on"})
    calls = sorted(documented(), key=lambda call: (call.path, call.method))
    assert {call.operation for call in calls} <= RULES.keys(), "an operation has no rule here"
    assert len(calls) >= 24
    matrix = await Matrix.lay_out(deployment)
    seen: dict[tuple[str, str], list[str]] = {}
    wrong = []
    for call in calls:
        rule = RULES[call.operation]
        for holder in HOLDERS:
            for tenant in TENANTS:
                response = await matrix.ask(call, holder, tenant)
                found = outcome(rule, response)
                seen.setdefault((call.operation, holder.name), []).append(found)
                if found == UNKNOWN:
                    assert response.headers["www-authenticate"] == "Bearer"
                if found != expected(rule, holder, tenant):
                    wrong.append((call.operation, holder.name, tenant, found, response.text))
    assert wrong == []
    drawn = page(calls, seen)
    print(f"\n{drawn}")
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == drawn
    if not current:
        PAGE.write_text(drawn, encoding="utf-8")
    assert current, "docs/reference/authorization-matrix.md was out of date and has been written anew"


@pytest.mark.parametrize("holder", [holder for holder in HOLDERS if holder.known], ids=lambda h: h.name)
def test_the_rules_tell_tenants_apart(holder: Holder) -> None:
    """The table itself: nobody who is limited to a tenant is expected to get at another's job."""
    for rule in RULES.values():
        for tenant in TENANTS:
            if rule.scope == "job" and tenant not in holder.tenants and "*" not in holder.tenants:
                assert expected(rule, holder, tenant) in (NOT_ALLOWED, ABSENT, UNKNOWN)
