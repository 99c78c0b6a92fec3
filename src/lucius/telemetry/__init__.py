"""What can be seen of Lucius from outside: logs, metrics, and spans.

In: commits as they happen, requests and attempts as they end, figures that other packages keep. Out: lines on
stderr, text for Prometheus, spans for a collector. Knows jobs, steps and events as values; knows nothing of
the ledger, of HTTP or of an engine. Nothing in here can stop or change what it watches.

`logs` sets up the log, `state_log` writes a line for each change of state. `metrics` is the registry of a
process, over `series`, with `open_jobs` for the gauges; `exposition` that of a process without a ledger.
`job_spans` and `attempts` make spans, `traces` and `context` carry their ids, `otlp` exports them.
"""

from lucius.telemetry.attempts import AttemptMetrics
from lucius.telemetry.context import RequestIds
from lucius.telemetry.exposition import Exposition
from lucius.telemetry.job_spans import JobSpans
from lucius.telemetry.logs import configure_logging
from lucius.telemetry.metrics import Metrics
from lucius.telemetry.state_log import StateLog
from lucius.telemetry.traces import Span

__all__ = [
    "AttemptMetrics",
    "Exposition",
    "JobSpans",
    "Metrics",
    "RequestIds",
    "Span",
    "StateLog",
    "configure_logging",
]
