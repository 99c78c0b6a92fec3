"""What can be seen of Lucius from outside: logs and metrics.

In: commits as they happen, requests as they end, figures that others keep. Out: lines on stderr, and text for
Prometheus. Knows jobs, steps and events as values; knows nothing of the ledger, of HTTP or of an engine.
Nothing in here can stop or change what it watches.
"""

from lucius.telemetry.context import RequestIds
from lucius.telemetry.logs import configure_logging
from lucius.telemetry.metrics import Metrics
from lucius.telemetry.trail import Trail

__all__ = ["Metrics", "RequestIds", "Trail", "configure_logging"]
