"""What each kind of process shows at `/metrics`, by name (specification 001, 20, and 002, 12)."""

from prometheus_client.parser import text_string_to_metric_families

from lucius.assembly import Part

_PROCESS = {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"}
_LEDGER = _PROCESS | {
    "lucius_jobs_created",
    "lucius_jobs_ended",
    "lucius_job_seconds",
    "lucius_step_seconds",
    "lucius_step_retries",
    "lucius_step_failures",
    "lucius_timeouts",
    "lucius_sla_escalations",
    "lucius_dispatch_lag_seconds",
    "lucius_publish_failures",
    "lucius_replies",
    "lucius_sweeper_actions",
}
# Processes that look after lanes measure them, and no other does: told twice, they would count twice.
_MEASURES = {
    "lucius_jobs_open",
    "lucius_outbox_waiting",
    "lucius_outbox_oldest_seconds",
    "lucius_lane_waiting",
    "lucius_dlq_jobs",
    "lucius_inflight_jobs",
}
_HTTP = {"lucius_http_requests", "lucius_http_request_seconds", "lucius_commands"}
_SERVICE = {
    "lucius_service_attempts",
    "lucius_service_attempt_seconds",
    "lucius_service_under_way",
    "lucius_service_directives_left",
    "lucius_service_replies_undelivered",
}
_WORKER = {
    "lucius_invoker_calls",
    "lucius_invoker_call_seconds",
    "lucius_worker_polls",
    "temporal_request",
    "temporal_request_latency_seconds",
    "temporal_num_pollers",
    "temporal_worker_task_slots_available",
    "temporal_worker_task_slots_used",
    "temporal_worker_start",
}
NAMES = {
    Part.ALL.value: _LEDGER | _MEASURES | _HTTP,
    Part.API.value: _LEDGER | _HTTP,
    Part.RECONCILER.value: _LEDGER | _MEASURES,
    Part.ORCHESTRATOR.value: _LEDGER | _HTTP | {"lucius_workflow_starts", "lucius_repair_actions"},
    Part.INVOKER.value: _LEDGER | _MEASURES | {"lucius_workflow_signals", "lucius_internal_calls"},
    "worker": _PROCESS | _WORKER,
    "service": _PROCESS | _SERVICE,
}


def check_names(kind: str, exposition: str) -> None:
    told = {family.name for family in text_string_to_metric_families(exposition)}
    assert told >= NAMES[kind], f"{kind} does not tell {sorted(NAMES[kind] - told)}"
    if not NAMES[kind] >= _MEASURES:
        assert not told & _MEASURES, kind
