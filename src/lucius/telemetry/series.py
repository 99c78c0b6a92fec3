"""Figures that are cheap to keep: counts and spreads in plain dicts, with a bound on how many there may be.

In: numbers, under labels. Out: metric families for Prometheus, made at each scrape. They are kept and
read in one thread, the event loop's, so they need no lock.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

OTHER = "other"

Labels = tuple[str, ...]


class BoundedLabels:
    """Turns names that users choose into labels: at most `names_max` of them, the rest are one. A name keeps
    the label it was given first, so that what was counted up under a label is counted down under it too."""

    def __init__(self, names_max: int, known: Callable[[str], bool] = lambda name: True) -> None:
        self._names_max = names_max
        self._known = known
        self._labels: dict[str, str] = {}

    def label(self, name: str) -> str:
        found = self._labels.get(name)
        if found is None:
            if len(self._labels) >= self._names_max:
                return OTHER
            found = self._labels[name] = name if self._known(name) else OTHER
        return found


class LabelledCounter:
    """Counts under labels. Label sets beyond the bound are counted as one, with every label `other`."""

    def __init__(self, name: str, help_text: str, labels: Labels, *, sets_max: int) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self._sets_max = sets_max
        self._rest = (OTHER,) * len(labels)
        self.counts: dict[Labels, float] = {}

    def add(self, labels: Labels, count: float = 1) -> None:
        counts = self.counts
        known = counts.get(labels)
        if known is None:
            if len(counts) >= self._sets_max:
                labels = self._rest
            known = counts.get(labels, 0)
        counts[labels] = known + count

    def family(self) -> Metric:
        return counter(self.name, self.help_text, self.labels, self.counts)


Bucket = tuple[str, float] | tuple[str, float, Exemplar]


class Histogram:
    """How many fell below each bound, and their sum. Of each bucket the latest trace is known, if there was
    one: scrapers that ask for OpenMetrics get it as the bucket's exemplar."""

    __slots__ = ("bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.examples: dict[int, tuple[str, float, float]] = {}  # by bucket: trace, value, seconds since 1970

    def observe(self, value: float, count: int = 1, trace_id: str | None = None, at_ms: int = 0) -> None:
        index = bisect_left(self.bounds, value)
        self.counts[index] += count
        self.total += value * count
        if trace_id is not None:
            self.examples[index] = trace_id, value, at_ms / 1000

    def buckets(self) -> Iterator[Bucket]:
        below = 0
        for index, bound in enumerate([*(repr(float(each)) for each in self.bounds), "+Inf"]):
            below += self.counts[index]
            example = self.examples.get(index)
            if example is None:
                yield bound, below
            else:
                trace_id, value, at_seconds = example
                yield bound, below, Exemplar({"trace_id": trace_id}, value, at_seconds)


class LabelledHistogram:
    """Histograms under labels, bounded like a `LabelledCounter`."""

    def __init__(
        self, name: str, help_text: str, labels: Labels, bounds: Sequence[float], *, sets_max: int
    ) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self._bounds = bounds
        self._sets_max = sets_max
        self._rest = (OTHER,) * len(labels)
        self.histograms: dict[Labels, Histogram] = {}

    def observe(
        self, labels: Labels, value: float, count: int = 1, trace_id: str | None = None, at_ms: int = 0
    ) -> None:
        histogram = self.histograms.get(labels)
        if histogram is None:
            if len(self.histograms) >= self._sets_max:
                labels = self._rest
            histogram = self.histograms.setdefault(labels, Histogram(self._bounds))
        # As `Histogram.observe` does, in place: a job is observed seven times.
        index = bisect_left(histogram.bounds, value)
        histogram.counts[index] += count
        histogram.total += value * count
        if trace_id is not None:
            histogram.examples[index] = trace_id, value, at_ms / 1000

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help_text, labels=self.labels)
        for labels, histogram in self.histograms.items():
            family.add_metric(labels, buckets=list(histogram.buckets()), sum_value=histogram.total)
        return family


def counter(name: str, help_text: str, labels: Labels, counts: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def gauge(name: str, help_text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family
