"""What a process that holds no ledger shows to Prometheus: figures of its own, and of the process itself."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class Exposition:
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Families(families))

    def text(self, accept: str, *, tenants: bool) -> tuple[bytes, str]:
        """The exposition and its media type. There are no tenants in it."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()
