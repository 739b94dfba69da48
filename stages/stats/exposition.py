"""The text of /metrics, made at each scrape from what was counted: in Prometheus' own format, or OpenMetrics'."""

import time
from collections.abc import Iterable, Iterator

from attrs import define
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from stages.stats.metrics import Family, View, common_labels, families
from stages.stats.stage import Stats


def expose(stats: Stats, now_s: float, accept: str) -> tuple[bytes, str]:
    """Return the text of every family as of now_s in the format an Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(View(stats.book, stats.sources, now_s, stats.send.num_lost, time.process_time())))
    return encode(registry), content_type


@define(eq=False)
class _Collector(Collector):
    """One scrape's families; prometheus-client keeps none of them."""

    view: View

    def collect(self) -> Iterable[Metric]:
        """Give every family."""
        return map(self._metric, families(self.view.sources))

    def describe(self) -> Iterator[Metric]:
        """Give nothing: names are known only at a scrape."""
        return iter(())

    def _metric(self, family: Family) -> Metric:
        common = common_labels(family.name.partition(":")[0], self.view.sources)
        names, values = [*common, *family.labels], [*common.values()]
        metric: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if family.kind == "histogram":
            metric = HistogramMetricFamily(family.name, family.text, labels=names)
            bounds = [*(repr(float(bound)) for bound in family.bounds), "+Inf"]
            for sample in family.values(self.view):
                buckets = list(zip(bounds, map(float, sample.buckets), strict=True))
                metric.add_metric([*values, *sample.labels], buckets, sample.value)
            return metric
        metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
            family.name, family.text, labels=names
        )
        for sample in family.values(self.view):
            metric.add_metric([*values, *sample.labels], float(sample.value))
        return metric
