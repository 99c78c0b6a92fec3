"""What can be seen of Lucius from outside: logs, metrics, and spans of attempts.

In: commits as they happen, requests and attempts as they end, figures that others keep. Out: lines on stderr,
and text for Prometheus. Knows jobs, steps and events as values; knows nothing of the ledger, of HTTP or of
an engine. Nothing in here can stop or change what it watches.
"""

from lucius.telemetry.attempts import AttemptWatch
from lucius.telemetry.context import RequestIds
from lucius.telemetry.logs import configure_logging
from lucius.telemetry.metrics import Metrics
from lucius.telemetry.traces import Span
from lucius.telemetry.trail import Trail

__all__ = ["AttemptWatch", "Metrics", "RequestIds", "Span", "Trail", "configure_logging"]
