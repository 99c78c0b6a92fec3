"""From an envelope to the rows of a new job. Pure."""

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from lucius.contracts.envelope import Envelope
from lucius.core.model import Job, Json, ProtocolSpec, Routing, Step, step_id_at
from lucius.core.states import Engine

SYSTEM = "lucius"


class CommandDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What every new job of this deployment gets."""

    engine: Engine
    sla_ms: int
    workspace_root: str  # a URI; a job works below <root>/<system>/<tenant>/<jobId>/


class CommandIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two commands the same."""

    idempotency_hash: str
    fingerprint: str


class NewIds(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    correlation_id: str
    traceparent: str


def new_job(
    envelope: Envelope,
    protocol: ProtocolSpec,
    payloads: tuple[Json, ...],
    routing: Routing,
    identity: CommandIdentity,
    ids: NewIds,
    defaults: CommandDefaults,
    now_ms: int,
) -> tuple[Job, tuple[Step, ...]]:
    job = Job(
        job_id=ids.job_id,
        tenant_id=envelope.tenant_id,
        tenant_norm=envelope.tenant_norm,
        request_type=envelope.request_type,
        protocol_id=protocol.protocol_id,
        engine=defaults.engine,
        mode=routing.resolved_mode,
        lane=routing.lane,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        sla_ms=defaults.sla_ms,
        output_uri=envelope.output_ref["uri"],
        idempotency_hash=identity.idempotency_hash,
        fingerprint=identity.fingerprint,
        correlation_id=envelope.correlation_id or ids.correlation_id,
        traceparent=envelope.traceparent or ids.traceparent,
        doc_id=envelope.doc_id,
        idempotency_key=envelope.idempotency_key,
        callback_urls=envelope.callback_urls,
        priority=envelope.priority,
    )
    workspace = workspace_uri(defaults.workspace_root, envelope.tenant_norm, ids.job_id)
    workspace_refs = refs_of_steps(workspace, [spec.step_type for spec in protocol.steps])
    steps = tuple(
        Step(
            step_id=step_id_at(index),
            step_index=index,
            step_type=spec.step_type,
            service=spec.service,
            fallback=spec.fallback,
            policy=spec.policy,
            routing=routing,
            input_ref=envelope.input_ref,
            workspace_ref=workspace_refs[index],
            output_ref=envelope.output_ref,
            payload=payloads[index],
            stop_on_pause=spec.stop_on_pause,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
        )
        for index, spec in enumerate(protocol.steps)
    )
    return job, steps


def workspace_uri(root: str, tenant_norm: str, job_id: str) -> str:
    return f"{root.rstrip('/')}/{SYSTEM}/{workspace_name(tenant_norm)}/{job_id}/"


def workspace_name(tenant_norm: str) -> str:
    """One segment, whatever the tenant is called; a slash in its name is encoded."""
    return quote(tenant_norm, safe="")


def refs_of_steps(workspace: str, step_types: Sequence[str]) -> list[dict[str, Json]]:
    """The job's workspace for each step. Attempts write below the type of their step, so a step whose type
    was there before gets a folder of its own: its artifacts never meet those of the other."""
    refs: list[dict[str, Json]] = []
    seen: set[str] = set()
    for index, step_type in enumerate(step_types):
        name = step_type.lower()
        refs.append({"uri": f"{workspace}{step_id_at(index)}/" if name in seen else workspace})
        seen.add(name)
    return refs
