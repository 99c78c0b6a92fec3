"""The routes of the public API: method, path, who may call, handler, and the id of its description.

The order is that of the OpenAPI document. What is done for every route is in `routing`, what an operation
means to its callers in `described`.
"""

from typing import Final

from lucius.api import (
    admin,
    artifacts,
    bulk,
    commands,
    fleet,
    job_stream,
    jobs,
    keys,
    pauses,
    reasons,
    schedules,
    session,
    usage,
    webhooks,
    why,
    work,
)
from lucius.api.routing import Route, by_role, by_token, without_credential
from lucius.contracts.keys import Role
from lucius.core.inputs import Cancel, Pause, Resume

READ, SUBMIT, CONTROL, WORK, ADMIN = Role.READ, Role.SUBMIT, Role.CONTROL, Role.WORK, Role.ADMIN
GET, HEAD, POST = "GET", "HEAD", "POST"

COMMAND_ROUTES: Final = (
    by_role(SUBMIT, POST, "/v1/orchestrate", commands.orchestrate, "orchestrate", counts_commands=True),
    by_role(SUBMIT, POST, "/v1/commands", commands.orchestrate, "submitCommand", counts_commands=True),
    by_role(SUBMIT, POST, "/v1/orchestrate:batch", commands.batch, "orchestrateBatch", counts_commands=True),
    by_role(SUBMIT, POST, "/v1/orchestrate:plan", reasons.plan_command, "planCommand"),
)
JOB_ROUTES: Final = (
    by_role(READ, GET, "/v1/jobs/{job_id}:explain", reasons.explain_job, "explainJob"),
    by_role(ADMIN, POST, "/v1/jobs/{job_id}:adopt", reasons.adopt_result, "adoptResult"),
    by_role(READ, GET, "/v1/jobs/{job_id}", jobs.get_job, "getJob"),
    by_role(READ, GET, "/v1/jobs/{job_id}/steps", jobs.get_steps, "getSteps"),
    by_role(READ, GET, "/v1/jobs/{job_id}/events", jobs.get_events, "getEvents"),
    by_role(READ, GET, "/v1/jobs/{job_id}/artifacts", artifacts.list_artifacts, "listArtifacts"),
    by_role(READ, GET, "/v1/jobs/{job_id}/artifacts:preview", artifacts.preview_artifact, "previewArtifact"),
    by_role(READ, GET, "/v1/jobs", jobs.list_jobs, "listJobs"),
    by_role(READ, GET, "/v1/jobs:counts", fleet.count_jobs, "countJobs"),
    by_role(READ, GET, "/v1/jobs:stream", job_stream.stream_jobs, "streamJobs"),
    by_role(CONTROL, POST, "/v1/jobs:bulk", bulk.act_on_jobs, "actOnJobs"),
    by_role(CONTROL, POST, "/v1/jobs/{job_id}:cancel", jobs.control(Cancel), "cancelJob"),
    by_role(CONTROL, POST, "/v1/jobs/{job_id}:pause", jobs.control(Pause), "pauseJob"),
    by_role(CONTROL, POST, "/v1/jobs/{job_id}:resume", jobs.control(Resume), "resumeJob"),
    by_role(CONTROL, POST, "/v1/jobs/{job_id}:rerun", jobs.rerun, "rerunJob"),
)
# The invoker serves these too, on a port that workers reach (see `internal`).
CALLBACK_ROUTES: Final = (
    by_token(POST, "/v1/callbacks/ack", work.callback("ACK"), "ackCallback"),
    by_token(POST, "/v1/callbacks/progress", work.callback("PROGRESS"), "progressCallback"),
    by_token(POST, "/v1/callbacks/result", work.callback("RESULT"), "resultCallback"),
    by_token(GET, "/v1/callbacks/attempt", work.get_attempt, "getAttempt"),
)
WORK_ROUTES: Final = (
    by_role(WORK, POST, "/v1/directives:lease", work.lease, "leaseDirectives"),
    *CALLBACK_ROUTES,
)
OPERATOR_ROUTES: Final = (
    by_role(ADMIN, POST, "/v1/admin/outbox/retry", admin.retry_outbox, "retryOutbox"),
    by_role(ADMIN, GET, "/v1/admin/dlq", admin.list_dlq, "listDlq"),
    by_role(ADMIN, POST, "/v1/admin/dlq/{job_id}:redrive", admin.redrive, "redriveJob"),
    by_role(READ, GET, "/v1/protocols", admin.list_protocols, "listProtocols"),
    by_role(READ, GET, "/v1/protocols/{protocol_id}", admin.get_protocol, "getProtocol"),
    without_credential((GET, HEAD), "/livez", admin.livez, "livez"),  # load balancers often ask with HEAD
    without_credential((GET, HEAD), "/readyz", admin.readyz, "readyz"),
    by_role(ADMIN, GET, "/v1/admin/webhooks/dead", webhooks.list_dead, "listDeadWebhooks"),
    by_role(ADMIN, POST, "/v1/admin/webhooks/{job_id}:redeliver", webhooks.redeliver, "redeliverWebhook"),
    by_role(ADMIN, GET, "/v1/admin/keys", keys.list_keys, "listKeys"),
    by_role(ADMIN, POST, "/v1/admin/keys", keys.create_key, "createKey"),
    by_role(ADMIN, POST, "/v1/admin/keys/{key_id}:revoke", keys.revoke_key, "revokeKey"),
    without_credential((GET,), "/metrics", admin.metrics, "metrics"),
)

FLEET_ROUTES: Final = (
    without_credential((GET,), "/v1/session", session.get_session, "getSession"),
    by_role(READ, GET, "/v1/overview", fleet.get_overview, "getOverview"),
    by_role(READ, GET, "/v1/why", why.explain_fleet, "explainFleet"),
    by_role(READ, GET, "/v1/usage", usage.get_usage, "getUsage"),
    by_role(READ, GET, "/v1/services", fleet.list_services, "listServices"),
    by_role(READ, GET, "/v1/lanes", fleet.list_lanes, "listLanes"),
    by_role(READ, GET, "/v1/tenants", fleet.list_tenants, "listTenants"),
)

SCHEDULE_ROUTES: Final = (
    by_role(READ, GET, "/v1/pauses", pauses.list_pauses, "listPauses"),
    by_role(CONTROL, POST, "/v1/pauses", pauses.pause, "pauseWork"),
    by_role(CONTROL, POST, "/v1/pauses:resume", pauses.resume, "resumeWork"),
    by_role(READ, GET, "/v1/schedules", schedules.list_schedules, "listSchedules"),
    by_role(SUBMIT, POST, "/v1/schedules", schedules.write_schedule, "writeSchedule"),
    by_role(READ, GET, "/v1/schedules/{schedule_id}", schedules.get_schedule, "getSchedule"),
    by_role(CONTROL, POST, "/v1/schedules/{schedule_id}:pause", schedules.pause_schedule, "pauseSchedule"),
    by_role(CONTROL, POST, "/v1/schedules/{schedule_id}:resume", schedules.resume_schedule, "resumeSchedule"),
    by_role(SUBMIT, POST, "/v1/schedules/{schedule_id}:delete", schedules.delete_schedule, "deleteSchedule"),
    by_role(SUBMIT, POST, "/v1/schedules/{schedule_id}:run", schedules.run_schedule, "runSchedule"),
    by_role(
        SUBMIT, POST, "/v1/schedules/{schedule_id}:backfill", schedules.backfill_schedule, "backfillSchedule"
    ),
)

ROUTES: Final[tuple[Route, ...]] = (
    *COMMAND_ROUTES,
    *JOB_ROUTES,
    *WORK_ROUTES,
    *OPERATOR_ROUTES,
    *FLEET_ROUTES,
    *SCHEDULE_ROUTES,
)
