"""The model tests' side of the API: a deployment, callers of two tenants, and their answers."""

import asyncio
import json
from datetime import datetime
from typing import Any

from tests.lab.model_ledger import Job, LedgerModel, StatusAndCode

from lucius.contracts.keys import Role
from lucius.jobs.admission import InFlightLimits
from lucius.ledger.job_ledger import LayoutName
from lucius_lab.fuzz.cases import reply_to
from lucius_lab.fuzz.server import FuzzAnswer, FuzzServer

Json = Any
TENANTS = ("acme", "globex")
TENANT_MAX = 4
EVIDENCE = {"REPLY_DUPLICATE", "REPLY_LATE", "REPLY_STALE"}


def stamp_ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)


def told(answer: FuzzAnswer) -> StatusAndCode:
    """The status, and the code of a refusal."""
    return answer.status, (answer.json()["code"] if answer.status >= 400 else "")


class ModelledApi:
    """A deployment, the model of its ledger, and an event loop of their own."""

    def __init__(self, layout: LayoutName, *, spans: bool) -> None:
        self._runner = asyncio.Runner()
        self.deployment = FuzzServer(
            1, layout=layout, spans=spans, limits=InFlightLimits(tenant_max=TENANT_MAX)
        )
        self.model = LedgerModel(tenant_max=TENANT_MAX, now=self.deployment.now_at_ms)
        self.directives: list[dict[str, Json]] = []
        self._leases: set[str] = set()
        self.root = self.run(self.deployment.key(*Role))
        self.owners = {
            tenant: self.run(self.deployment.key(*Role, tenants=frozenset({tenant}))) for tenant in TENANTS
        }

    def close(self) -> None:
        self._runner.close()

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def ask(
        self, method: str, path: str, key: str, document: Json = None, idempotency_key: str | None = None
    ) -> FuzzAnswer:
        path, _, query = path.partition("?")
        headers = [(b"authorization", f"Bearer {key}".encode())]
        if idempotency_key is not None:
            headers.append((b"idempotency-key", idempotency_key.encode()))
        body = b"" if document is None else json.dumps(document).encode()
        asked = self.deployment.request(method, path, headers=headers, body=body, query=query.encode())
        answer: FuzzAnswer = self.run(asked)
        return answer

    def refused_without_a_trace(self, expected: StatusAndCode, *asked: Any, **more: Any) -> None:
        """The request is refused as expected, and nothing is written."""
        before = self.deployment.writes
        answer = self.ask(*asked, **more)
        assert told(answer) == expected, answer.body
        assert answer.headers["content-type"] == "application/problem+json"
        assert self.deployment.writes == before

    # Work

    def lease(self, service: str, most: int) -> None:
        waiting = self.model.leasable(service)
        answer = self.ask("POST", "/v1/directives:lease", self.root, {"service": service, "max": most})
        assert answer.status == 200, answer.body
        taken = answer.json()["directives"]
        assert len(taken) == min(most, len(waiting))
        assert len({directive["jobId"] for directive in taken}) == len(taken)
        for directive in taken:
            assert directive["jobId"] in waiting
            step = self.model.leased(directive["jobId"], service)
            assert directive["attempt_no"] == step.attempt
            assert directive["lease_id"] not in self._leases, "a lease was given out twice"
            self._leases.add(directive["lease_id"])
            self.directives.append(directive)

    def reply(self, directive: Json, kind: str, word: str, number: int) -> None:
        job_id, attempt = directive["jobId"], directive["attempt_no"]
        index = int(directive["stepId"][-2:]) - 1
        message = reply_to(directive, kind.lower())
        if kind == "RESULT":
            message["status"] = word
        if kind == "PROGRESS":
            message["progress"] = number
        cancelling = self.model.jobs[job_id].state == "CANCELLING"
        expected = self.model.reply(job_id, index, attempt, kind, word, number)
        answer = self.ask("POST", f"/v1/callbacks/{kind.lower()}", directive["callback_token"], message)
        if expected[0] == 409:
            assert told(answer) == expected, answer.body
            assert answer.json()["stop"] is True
            return
        assert answer.status == 200, answer.body
        current = self.model.is_current(job_id, index, attempt)
        stop = cancelling or (expected[1] != "applied" and not current)
        assert answer.json() == {"outcome": expected[1], "stop": stop}

    # Looking

    def check_job(self, job_id: str) -> None:
        """What the API shows of a job is what the model says of it."""
        job = self.model.jobs[job_id]
        answer = self.ask("GET", f"/v1/jobs/{job_id}", self.owners[job.tenant])
        assert answer.status == 200, answer.body
        self._compare(job, answer.json())

    def _compare(self, job: Job, shown: Json) -> None:
        seen = (shown["state"], [(step["state"], step["attempt_no"]) for step in shown["steps"]])
        assert seen == (job.state, [(step.state, step.attempt) for step in job.steps])
        assert shown["attempts_total"] == job.attempts
        assert shown["rerun_of"] == job.rerun_of
        assert (shown["completed_at"] is not None) is job.ended
        for step, step_shown in zip(job.steps, shown["steps"], strict=True):
            assert stamp_ms(step_shown["lease_expires_at"]) == step.deadline
            assert stamp_ms(step_shown["next_attempt_at"]) == step.retry_at
            assert step_shown["progress"] == (100 if step.state == "SUCCEEDED" else step.progress)
            if step.state in ("DISPATCHING", "INITIATED", "PROCESSING"):
                assert shown["current_step_id"] == step_shown["stepId"]

    def check_trail(self, job_id: str) -> None:
        """Events are numbered without a gap, and hold exactly the evidence there should be."""
        job = self.model.jobs[job_id]
        items = self.ask("GET", f"/v1/jobs/{job_id}/events", self.owners[job.tenant]).json()["items"]
        assert [event["seq"] for event in items] == list(range(1, len(items) + 1))
        assert items[0]["type"] == "JOB_CREATED"
        assert sum(event["type"] in EVIDENCE for event in items) == job.evidence
        explained = self.ask("GET", f"/v1/jobs/{job_id}:explain", self.owners[job.tenant])
        assert (explained.status, explained.json()["state"]) == (200, job.state)

    def check_hidden(self, job_id: str) -> None:
        """Another tenant's caller cannot tell this job from one that does not exist."""
        other = next(key for tenant, key in self.owners.items() if tenant != self.model.jobs[job_id].tenant)
        job = f"/v1/jobs/{job_id}"
        for method, path in (("GET", job), ("GET", f"{job}/events"), ("GET", f"{job}:explain")):
            self.refused_without_a_trace((404, "JOB_NOT_FOUND"), method, path, other)
        for verb in ("cancel", "pause", "resume", "rerun"):
            self.refused_without_a_trace((404, "JOB_NOT_FOUND"), "POST", f"{job}:{verb}", other)

    def check_list(self, tenant: str | None, state: str | None) -> None:
        key = self.root if tenant is None else self.owners[tenant]
        query = "?limit=200" + ("" if state is None else f"&state={state}")
        items = self.ask("GET", f"/v1/jobs{query}", key).json()["items"]
        wanted = {
            job_id
            for job_id, job in self.model.jobs.items()
            if tenant in (None, job.tenant) and state in (None, job.state)
        }
        assert {item["jobId"] for item in items} == wanted
        assert len(items) == len(wanted)
        times = [item["created_at"] for item in items]
        assert times == sorted(times, reverse=True)

    def check_slots(self) -> None:
        """Counting the rows again finds the jobs that are open, and no others."""
        self.run(self.deployment.deployment.admission.recount())
        counted = self.deployment.deployment.admission.by_tenant
        held = {tenant: self.model.open_jobs(tenant) for tenant in TENANTS}
        assert counted == {tenant: count for tenant, count in held.items() if count}
