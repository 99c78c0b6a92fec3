"""Variables of a worker and an invoker that cannot change a job: a difference is told, once."""

from collections.abc import Iterator

import pytest
from temporalio.testing import ActivityEnvironment
from tests.replay.temporal_setup_replay import open_deployment
from tests.support.invoker_setup import Deployment, Workflows, internal_api
from tests.support.log_lines import Lines, caught
from tests.support.publisher_setup import World

from lucius.contracts.internal import JobDefaults
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import StartOptions, TemporalTarget
from lucius.engines.temporal.job_defaults import VARIABLES, WARNINGS_MAX, DefaultsCheck
from lucius.settings import read_settings
from lucius.settings.table import Attempts

SECRET = "a-secret-of-many-letters"
JOBS_HAVE = JobDefaults(max_attempts=3, step_result_timeout_seconds=900)


@pytest.fixture
def lines() -> Iterator[Lines]:
    with caught("info") as found:
        yield found


def test_the_variables_are_those_of_the_settings() -> None:
    assert set(VARIABLES.values()) == {Attempts.attempts_max.name, Attempts.lease.name}
    env = {"LUCIUS_MAX_ATTEMPTS": "5", "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "90s"}
    everything = JobDefaults(max_attempts=5, step_result_timeout_seconds=90)
    some = read_settings({"LUCIUS_MAX_ATTEMPTS": "5"}).temporal
    assert some.job_defaults == JobDefaults(max_attempts=5, step_result_timeout_seconds=900)
    assert some.job_defaults_set == JobDefaults(max_attempts=5)
    assert read_settings(env).temporal.job_defaults_set == everything
    assert read_settings({}).temporal.job_defaults_set == JobDefaults()


def test_each_difference_is_told_once(lines: Lines) -> None:
    check = DefaultsCheck(JobDefaults(max_attempts=5, step_result_timeout_seconds=900))
    for job_id in ("job_1", "job_2"):
        check.compare(JOBS_HAVE, job_id)
    check.compare(None, "job_of_an_older_workflow")
    told = lines.one("setting_without_effect")
    assert (told["variable"], told["here"], told["jobs_have"]) == ("LUCIUS_MAX_ATTEMPTS", 5, 3)
    assert (told["jobId"], told["level"]) == ("job_1", "warning")
    assert "set it on the orchestrator" in told["reason"]
    for number in range(WARNINGS_MAX * 2):
        check.compare(JobDefaults(max_attempts=10 + number), "job_3")
    assert len(lines.all("setting_without_effect")) == WARNINGS_MAX


def test_what_is_not_set_here_is_not_compared(lines: Lines) -> None:
    DefaultsCheck(JobDefaults()).compare(JOBS_HAVE, "job_1")
    DefaultsCheck(JOBS_HAVE).compare(JOBS_HAVE, "job_1")
    assert lines.all() == []


async def test_a_worker_and_an_invoker_compare(lines: Lines) -> None:
    deployment = Deployment(World(), Workflows(), own_defaults=JobDefaults(step_result_timeout_seconds=60))
    job_id = await deployment.submit()
    question = {"jobId": job_id, "stepId": "step_01", "attempt_no": 1, "lease_id": "L"}
    given = {**question, "created_with": {"max_attempts": 3, "step_result_timeout_seconds": 900.0}}
    async with internal_api(deployment, SECRET) as url:
        calls = InvokerCalls(url, SECRET, own_defaults=JobDefaults(max_attempts=5))
        answer = await ActivityEnvironment().run(calls.begin, given)
        await calls.close()
    assert answer["verdict"] == "go"
    told = {line["variable"]: line["jobs_have"] for line in lines.all("setting_without_effect")}
    assert told == {"LUCIUS_MAX_ATTEMPTS": 3, "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": 900}


@pytest.mark.xdist_group("temporal")
async def test_a_workflow_brings_what_its_orchestrator_creates_jobs_with(
    lines: Lines, temporal: TemporalTarget
) -> None:
    async with open_deployment(temporal, own_defaults=JobDefaults(max_attempts=5)) as deployment:
        stand_in = await deployment.begin(options=StartOptions(created_with=JOBS_HAVE))
        assert await deployment.end(stand_in) == "SUCCEEDED"
    assert lines.one("setting_without_effect")["jobs_have"] == 3
