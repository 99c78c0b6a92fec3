"""What Temporal's library counts of itself, as Prometheus reads it.

In: its updates, which it keeps in a buffer. Out: metric families under its own names, with the suffixes that
Prometheus asks for. The buffer is emptied every second and at each scrape; what does not fit is dropped.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import Metric
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_HISTOGRAM,
    BufferedMetric,
    MetricBuffer,
    MetricBufferDurationFormat,
)

from lucius.telemetry.series import Histogram

BUFFERED_MAX: Final = 200_000
DRAIN_SECONDS: Final = 1.0
METRICS_MAX: Final = 200
SETS_MAX: Final = 200  # of labels, for each metric; they are names of calls and of our own workflow
SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)

_Labels = tuple[tuple[str, str], ...]


class SdkMetrics:
    def __init__(self) -> None:
        self.buffer = MetricBuffer(BUFFERED_MAX, MetricBufferDurationFormat.SECONDS)
        """For the runtime that is to be watched, which must be made before the first scrape."""
        self._series: dict[str, _Series] = {}

    async def run(self) -> None:
        while True:
            self.drain()
            await asyncio.sleep(DRAIN_SECONDS)

    def drain(self) -> None:
        for update in self.buffer.retrieve_updates():
            metric = update.metric
            series = self._series.get(metric.name)
            if series is None:
                if len(self._series) >= METRICS_MAX:
                    continue
                series = self._series[metric.name] = _Series(metric)
            series.take(update.attributes, update.value)

    def families(self) -> Iterable[Metric]:
        self.drain()
        return [series.family() for series in self._series.values()]


class _Series:
    """One metric. Its label sets need not have the same names."""

    def __init__(self, metric: BufferedMetric) -> None:
        unit = "_seconds" if metric.unit == "s" else ""
        self._name = metric.name.removesuffix("_total") + unit
        self._help = metric.description or metric.name
        self._kind = metric.kind
        self._values: dict[_Labels, float] = {}
        self._histograms: dict[_Labels, Histogram] = {}

    def take(self, attributes: Mapping[str, object], value: float) -> None:
        labels = tuple(sorted((name, str(each)) for name, each in attributes.items()))
        if self._kind == BUFFERED_METRIC_KIND_HISTOGRAM:
            if labels in self._histograms or len(self._histograms) < SETS_MAX:
                self._histograms.setdefault(labels, Histogram(SECONDS)).observe(value)
        elif labels in self._values or len(self._values) < SETS_MAX:
            before = self._values.get(labels, 0) if self._kind == BUFFERED_METRIC_KIND_COUNTER else 0
            self._values[labels] = before + value

    def family(self) -> Metric:
        if self._kind == BUFFERED_METRIC_KIND_HISTOGRAM:
            return self._spread()
        counts = self._kind == BUFFERED_METRIC_KIND_COUNTER
        family = Metric(self._name, self._help, "counter" if counts else "gauge")
        for labels, value in self._values.items():
            family.add_sample(f"{self._name}_total" if counts else self._name, dict(labels), value)
        return family

    def _spread(self) -> Metric:
        family = Metric(self._name, self._help, "histogram")
        for labels, histogram in self._histograms.items():
            count = 0.0
            for bound, count, *_ in histogram.buckets():
                family.add_sample(f"{self._name}_bucket", {**dict(labels), "le": bound}, count)
            family.add_sample(f"{self._name}_count", dict(labels), count)
            family.add_sample(f"{self._name}_sum", dict(labels), histogram.total)
        return family
