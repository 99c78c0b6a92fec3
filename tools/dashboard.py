"""Writes the Grafana dashboard from the table of its panels below.

Usage: python tools/dashboard.py [--check]   (from the top of the repository; --check only fails on drift)

Every query is limited to `$job`, those about services to `$service`; `$__rate_interval` is Grafana's word for
a window that holds enough scrapes. A query whose series begin with the first event adds `or vector(0)`, so
that a panel on which nothing happened yet shows a zero.
"""

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path("deploy/helm/lucius/files/dashboard.json")
WIDTH, COLUMNS, HEIGHT = 24, 3, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
J, S = 'job=~"$job"', 'job=~"$job",service=~"$service"'

Query = tuple[str, str]  # PromQL, legend
Panel = tuple[str, str, str, list[Query]]  # title, unit, what it says, queries


def rate(metric: str, by: str, extra: str = "", labels: str = J) -> str:
    given = f"{labels},{extra}" if extra else labels
    return f"sum by ({by}) (rate({metric}{{{given}}}[$__rate_interval]))"


SET_ASIDE = "poison|unknown_job|other_tenant|unsigned|forged|unreadable|refused|failed"
NOT_STARTED = 'outcome=~"unavailable|left_to_repair"'


def total(metric: str, extra: str = "", labels: str = J) -> str:
    given = f"{labels},{extra}" if extra else labels
    return f"sum(rate({metric}{{{given}}}[$__rate_interval])) or vector(0)"


def quantiles(metric: str, by: str = "", extra: str = "", labels: str = J) -> list[Query]:
    if by:
        return [(quantile(0.95, metric, by, extra, labels), f"{{{{{by}}}}}")]
    return [(quantile(q, metric, "", extra, labels), f"p{int(q * 100)}") for q in (0.5, 0.95, 0.99)]


def quantile(q: float, metric: str, by: str, extra: str, labels: str) -> str:
    groups, given = f"le, {by}" if by else "le", f"{labels},{extra}" if extra else labels
    return f"histogram_quantile({q}, sum by ({groups}) (rate({metric}_bucket{{{given}}}[$__rate_interval])))"


ROWS: list[tuple[str, list[Panel]]] = [
    (
        "At a glance",
        [
            ("Open jobs", "short", "By state.", [(f"sum by (state) (lucius_jobs_open{{{J}}})", "{{state}}")]),
            (
                "Oldest directive",
                "s",
                "Of the directive that waits longest. Rising: no worker takes directives of the service.",
                [(f"max by (service) (lucius_outbox_oldest_seconds{{{S}}})", "{{service}}")],
            ),
            (
                "Dead letters",
                "short",
                "Finally failed jobs that no operator took up again.",
                [(f"sum(lucius_dlq_jobs{{{J}}})", "jobs")],
            ),
        ],
    ),
    (
        "Throughput",
        [
            (
                "Jobs created",
                "ops",
                "By request type.",
                [(rate("lucius_jobs_created_total", "request_type"), "{{request_type}}")],
            ),
            (
                "Jobs ended",
                "ops",
                "By the state they ended in.",
                [(rate("lucius_jobs_ended_total", "state"), "{{state}}")],
            ),
            (
                "Commands",
                "ops",
                "By what their sender was told.",
                [(rate("lucius_commands_total", "outcome"), "{{outcome}}")],
            ),
        ],
    ),
    (
        "Latency",
        [
            (
                "Jobs, from creation to end",
                "s",
                "Of those that succeeded.",
                quantiles("lucius_job_seconds", extra='state="SUCCEEDED"'),
            ),
            (
                "Steps, p95",
                "s",
                "From the hand-out of a step's last attempt to its end.",
                quantiles("lucius_step_seconds", "step_type"),
            ),
            (
                "Dispatch lag, p95",
                "s",
                "From an attempt's beginning to its hand-out.",
                quantiles("lucius_dispatch_lag_seconds", "service", labels=S),
            ),
        ],
    ),
    (
        "Retries and failures",
        [
            (
                "Retries",
                "ops",
                "Attempts to be repeated, by reason.",
                [(rate("lucius_step_retries_total", "step_type, reason"), "{{step_type}} {{reason}}")],
            ),
            (
                "Failed steps",
                "ops",
                "Finally, by reason.",
                [(rate("lucius_step_failures_total", "step_type, reason"), "{{step_type}} {{reason}}")],
            ),
            (
                "Timeouts and SLA",
                "ops",
                "Attempts whose ACK or lease ran out; jobs that are open for longer than their SLA.",
                [
                    (total("lucius_timeouts_total", 'kind="ack"'), "ACK"),
                    (total("lucius_timeouts_total", 'kind="lease"'), "lease"),
                    (total("lucius_sla_escalations_total"), "SLA"),
                ],
            ),
        ],
    ),
    (
        "Outbox and lanes",
        [
            (
                "Backlog",
                "short",
                "Directives that wait for a taker.",
                [(f"sum by (service) (lucius_outbox_waiting{{{S}}})", "{{service}}")],
            ),
            (
                "Lanes",
                "short",
                "The same by lane: one that stands out has no worker, or one busy tenant.",
                [(f"sum by (lane) (lucius_lane_waiting{{{S}}})", "{{lane}}")],
            ),
            (
                "Publish failures",
                "ops",
                "Directives that a broker did not take.",
                [(total("lucius_publish_failures_total", labels=S), "failures")],
            ),
        ],
    ),
    (
        "Replies",
        [
            (
                "Replies",
                "ops",
                "ACK, PROGRESS and RESULT, by what became of them.",
                [(rate("lucius_replies_total", "type, outcome"), "{{type}} {{outcome}}")],
            ),
            (
                "Replies over a bus that were set aside",
                "ops",
                "Dead-lettered, or given back.",
                [(total("lucius_bus_replies_total", f'outcome=~"{SET_ASIDE}"'), "set aside")],
            ),
            (
                "Webhooks",
                "ops",
                "Tries to deliver one.",
                [(rate("lucius_webhook_deliveries_total", "outcome") + " or vector(0)", "{{outcome}}")],
            ),
        ],
    ),
    (
        "Sweeper and upkeep",
        [
            (
                "Sweeper actions",
                "ops",
                "Rows of the due index, by what was done about them.",
                [(rate("lucius_sweeper_actions_total", "action"), "{{action}}")],
            ),
            (
                "Rows in doubt",
                "short",
                "Unreadable, or found by the check of the store. Anything but 0 is worth a look.",
                [
                    (f"sum(lucius_quarantine_rows{{{J}}})", "in quarantine"),
                    (f"sum(lucius_store_findings{{{J}}})", "found by the check"),
                    (
                        f"sum(increase(lucius_index_repairs_total{{{J}}}[1h])) or vector(0)",
                        "index rows repaired in an hour",
                    ),
                ],
            ),
            (
                "Audit and retention",
                "ops",
                "Rows that the audit reads, and jobs that retention removes.",
                [
                    (total("lucius_audit_rows_total"), "rows audited"),
                    (total("lucius_jobs_forgotten_total"), "jobs removed"),
                ],
            ),
        ],
    ),
    (
        "Tenants and limits",
        [
            (
                "Tenants with the most jobs in flight",
                "short",
                "By name for a scraper that may see all tenants.",
                [(f"topk(10, sum by (tenant) (lucius_inflight_jobs{{{J}}})) or vector(0)", "{{tenant}}")],
            ),
            (
                "Share of the limit in use",
                "percentunit",
                "Of all jobs that may be in flight.",
                [
                    (
                        f'sum(lucius_jobs_open{{{J}}}) / max(lucius_inflight_limit{{{J},scope="total"}})',
                        "in use",
                    )
                ],
            ),
            (
                "Commands refused at a limit",
                "ops",
                "By a tenant's own limit, or because the system is full.",
                [
                    (total("lucius_commands_total", 'outcome="TENANT_LIMIT"'), "tenant"),
                    (total("lucius_commands_total", 'outcome="SYSTEM_SATURATED"'), "system"),
                ],
            ),
        ],
    ),
    (
        "HTTP",
        [
            (
                "Requests",
                "reqps",
                "By status.",
                [(rate("lucius_http_requests_total", "status"), "{{status}}")],
            ),
            (
                "Answers to commands",
                "s",
                "POST /v1/orchestrate.",
                quantiles("lucius_http_request_seconds", extra='route="/v1/orchestrate",method="POST"'),
            ),
            (
                "Connections, streams, waits",
                "short",
                "Open now.",
                [
                    (f"sum(lucius_http_connections{{{J}}})", "connections"),
                    (f"sum(lucius_streams_open{{{J}}})", "streams"),
                    (f"sum(lucius_waits_open{{{J}}})", "waits"),
                ],
            ),
        ],
    ),
    (
        "Temporal engine and services",
        [
            (
                "Workflows",
                "ops",
                "Starts and signals that did not get through, and workflows that repair started.",
                [
                    (total("lucius_workflow_starts_total", NOT_STARTED), "starts that failed"),
                    (total("lucius_workflow_signals_total", 'outcome="unavailable"'), "signals that failed"),
                    (total("lucius_repair_actions_total", 'action="acted"'), "started by repair"),
                ],
            ),
            (
                "Attempts in services",
                "ops",
                "By outcome, as services tell it at their health port.",
                [
                    (
                        rate("lucius_service_attempts_total", "service, outcome", labels=S) + " or vector(0)",
                        "{{service}} {{outcome}}",
                    )
                ],
            ),
            (
                "Under way in services",
                "short",
                "Attempts.",
                [(f"sum by (service) (lucius_service_under_way{{{S}}}) or vector(0)", "{{service}}")],
            ),
        ],
    ),
    (
        "Processes",
        [
            (
                "Processor",
                "percentunit",
                "Of one core.",
                [(rate("process_cpu_seconds_total", "instance"), "{{instance}}")],
            ),
            ("Memory", "bytes", "Resident.", [(f"process_resident_memory_bytes{{{J}}}", "{{instance}}")]),
            (
                "Commits that shared a transaction",
                "short",
                "Mean number: more under load is what group commit is for.",
                [
                    (
                        f"sum(rate(lucius_group_commit_callers_sum{{{J}}}[$__rate_interval])) / "
                        f"sum(rate(lucius_group_commit_callers_count{{{J}}}[$__rate_interval]))",
                        "commits",
                    )
                ],
            ),
        ],
    ),
]


def panel(number: int, column: int, top: int, described: Panel) -> dict[str, Any]:
    title, unit, says, queries = described
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": says,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH // COLUMNS, "x": column * (WIDTH // COLUMNS), "y": top},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "exemplar": "_bucket" in expression,
            }
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, described in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top}, "panels": []})  # fmt: skip
        panels += [
            panel(len(panels) + 1 + column, column, top + 1, each) for column, each in enumerate(described)
        ]
        top += 1 + HEIGHT
    return {
        "uid": "lucius",
        "title": "Lucius",
        "tags": ["lucius"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
                variable("job", "Job", "label_values(process_resident_memory_bytes, job)"),
                variable("service", "Service", "label_values(lucius_outbox_waiting, service)"),
            ]
        },
        "panels": panels,
    }


def main() -> int:
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
