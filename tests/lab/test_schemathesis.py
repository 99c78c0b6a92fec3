"""The API against its own description: requests drawn from docs/openapi.json, answers held against it.

A deployment with authentication listens on loopback; callers hold every role, some roles, or nothing.
Requests that fit the description and requests that break it are both sent. LUCIUS_SOAK=1 sends far more.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import schemathesis
import structlog
import uvicorn
from hypothesis import HealthCheck, note, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import (
    CoveragePhaseConfig,
    GenerationConfig,
    PhasesConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema
from tests.sizes import SOAKING

from lucius.contracts.keys import Role
from lucius_lab.fuzz.cases import FuzzTargets, staged
from lucius_lab.fuzz.server import FuzzServer, quiet

pytestmark = pytest.mark.xdist_group("schemathesis")

EXAMPLES, EXAMPLES_OF_A_ROLE = (1_000, 100) if SOAKING else (8, 2)
START_SECONDS_MAX = 30
JOB_WAIT_SECONDS_MAX, LEASE_WAIT_SECONDS_MAX = 60, 30

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"


def described(*, systematic: bool) -> OpenApiSchema:
    """The description, to draw from. `systematic`: every bound of every field as well, not only by chance."""
    generation = GenerationConfig(
        modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE],
        deterministic=not SOAKING,
        with_security_parameters=False,
    )
    phases = PhasesConfig(coverage=CoveragePhaseConfig(enabled=systematic))
    project = ProjectConfig(generation=generation, phases=phases)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_path(str(DOCUMENT), config=config)


@pytest.fixture(scope="module")
def whole() -> OpenApiSchema:
    return described(systematic=True)


@pytest.fixture(scope="module")
def drawn() -> OpenApiSchema:
    return described(systematic=SOAKING)


# By the names of fixtures: what every operation is asked is drawn up when a test runs, not in every process
# that only counts the tests.
systematic = schemathesis.pytest.from_fixture("whole")
by_chance = schemathesis.pytest.from_fixture("drawn")

SHAPE = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
ALL = [*SHAPE, negative_data_rejection, unsupported_method, ignored_auth]

# A plan and a batch are answered with what is wrong with the envelopes in them; of a reply, whatever only
# people read is left out where it cannot be read.
TAKES_MORE = (
    "/v1/orchestrate:batch",
    "/v1/orchestrate:plan",
    "/v1/callbacks/progress",
    "/v1/callbacks/result",
)

ROLES: dict[str, tuple[tuple[Role, ...], frozenset[str] | None]] = {
    "reader of one tenant": ((Role.READ,), frozenset({"acme"})),
    "submitter of two tenants": ((Role.SUBMIT, Role.CONTROL), frozenset({"acme", "globex"})),
    "worker": ((Role.WORK,), None),
}


Test = TypeVar("Test", bound=Callable[..., None])


def few(examples: int) -> Callable[[Test], Test]:
    """So many examples drawn by chance, for each operation."""
    chosen: Callable[[Test], Test] = settings(
        max_examples=examples,
        deadline=None,
        derandomize=not SOAKING,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return chosen


class Served:
    """A deployment behind a real socket, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.stage: FuzzTargets
        self.credentials: dict[str, str] = {}
        self._server: uvicorn.Server
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="a deployment for schemathesis")
        self._thread.start()
        assert self._started.wait(START_SECONDS_MAX)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        deployment = FuzzServer(7)
        self.stage = await staged(deployment)
        for name, (roles, tenants) in ROLES.items():
            self.credentials[name] = await deployment.key(*roles, tenants=tenants)
        self._server = uvicorn.Server(uvicorn.Config(deployment.app, log_config=None, lifespan="off"))
        self._started.set()
        await self._server.serve(sockets=[self._listening])

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    before = structlog.get_config()
    quiet()
    deployment = Served()
    try:
        yield deployment
    finally:
        deployment.close()
        structlog.configure(**before)


def prepared(case: Any, stage: FuzzTargets) -> Any:
    """Nobody waits, for there is nobody to wait for; half of the good cases speak of what exists."""
    if isinstance(case.query, dict) and _would_wait(case.query.get("wait"), JOB_WAIT_SECONDS_MAX):
        case.query["wait"] = "0"
    body = case.body if isinstance(case.body, dict) else {}
    if _would_wait(body.get("wait_seconds"), LEASE_WAIT_SECONDS_MAX):
        body["wait_seconds"] = 0
    draw = len(repr((case.path_parameters, case.query, body)))
    if draw % 2 or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    if isinstance(case.path_parameters, dict) and "jobId" in case.path_parameters:
        case.path_parameters["jobId"] = stage.jobs[draw % len(stage.jobs)]
    if case.path.startswith("/v1/callbacks/") and "lease_id" in body:
        directive = directive_of(case, stage)
        body.update({name: directive[name] for name in ("jobId", "stepId", "attempt_no", "lease_id")})
    return case


def _would_wait(value: Any, seconds_max: int) -> bool:
    """Whether this is a span of time that would be granted."""
    if isinstance(value, bool | None):
        return False
    try:
        return 0 < float(value) <= seconds_max
    except (TypeError, ValueError, OverflowError):
        return False


def directive_of(case: Any, stage: FuzzTargets) -> Any:
    return stage.directives[len(repr(case.body)) % len(stage.directives)]


def credential_of(case: Any, stage: FuzzTargets) -> str:
    if case.path.startswith("/v1/callbacks/"):
        return str(directive_of(case, stage)["callback_token"])
    return stage.key


@few(EXAMPLES)
@systematic.parametrize()
def test_answers_are_as_described(case: Any, served: Served) -> None:
    prepared(case, served.stage)
    bearer = f"Bearer {credential_of(case, served.stage)}"
    excluded = [negative_data_rejection] if case.path in TAKES_MORE else []
    case.call_and_validate(
        base_url=served.url, headers={"Authorization": bearer}, checks=ALL, excluded_checks=excluded
    )


@few(EXAMPLES_OF_A_ROLE)
@by_chance.parametrize()
def test_answers_to_lesser_roles_are_as_described(case: Any, served: Served) -> None:
    prepared(case, served.stage)
    for role, credential in served.credentials.items():
        note(f"asked by the {role}")
        headers = {"Authorization": f"Bearer {credential}"}
        case.call_and_validate(base_url=served.url, headers=headers, checks=SHAPE)


@few(EXAMPLES_OF_A_ROLE)
@by_chance.exclude(path_regex="^/(livez|readyz|metrics|v1/session)$").parametrize()
def test_nobody_is_told_anything(case: Any, served: Served) -> None:
    prepared(case, served.stage)
    response = case.call_and_validate(base_url=served.url, checks=SHAPE)
    # An address that does not know the method has nothing to guard.
    assert response.status_code == (401 if case.method == case.operation.method.upper() else 405)
