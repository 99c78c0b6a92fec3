"""What can be seen of Lucius from outside: logs, metrics, and spans.

In: commits as they happen, requests and attempts as they end, figures that others keep. Out: lines on stderr,
text for Prometheus, spans for a collector. Knows jobs, steps and events as values; knows nothing of the
ledger, of HTTP or of an engine. Nothing in here can stop or change what it watches.
"""

from lucius.telemetry.attempts import AttemptMetrics
from lucius.telemetry.context import RequestIds
from lucius.telemetry.job_spans import JobSpans
from lucius.telemetry.logs import configure_logging
from lucius.telemetry.metrics import Metrics
from lucius.telemetry.state_log import StateLog
from lucius.telemetry.traces import Span

__all__ = ["AttemptMetrics", "JobSpans", "Metrics", "RequestIds", "Span", "StateLog", "configure_logging"]
