"""The text of /metrics, made at each scrape from what was counted: in Prometheus' own format, or OpenMetrics'."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, frozen
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from stages.stats.metrics import Family, Sample, View, common_labels, families
from stages.stats.stage import Stats

_OPENMETRICS = "application/openmetrics-text"
OPENMETRICS = f"{_OPENMETRICS}; version=1.0.0"


@frozen(eq=False)
class Scrape:
    """What every family said at one instant; made in a few milliseconds on the loop, written on any thread."""

    families: Sequence[tuple[Family, Sequence[Sample]]]
    labels: Mapping[str, Mapping[str, str]]

    def text(self, is_open: bool) -> tuple[bytes, str]:
        """Return the text, in OpenMetrics' format or in Prometheus' own, and its content type."""
        encode, content_type = choose_encoder(OPENMETRICS if is_open else "")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        return encode(registry), content_type


def is_openmetrics(accept: str) -> bool:
    """Say whether an Accept header has OpenMetrics; of its versions and weights there is nothing to choose from."""
    return _OPENMETRICS in accept


def scrape(stats: Stats, now_s: float) -> Scrape:
    """Return what every family says as of now_s."""
    view = View(stats.book, stats.sources, now_s, stats.send.num_lost, time.process_time())
    labels = {prefix: common_labels(prefix, stats.sources) for prefix in ("trnrt", "sglang", "vllm")}
    return Scrape([(family, list(family.values(view))) for family in families(stats.sources)], labels)


@define(eq=False)
class _Collector(Collector):
    """One scrape's families; prometheus-client keeps none of them."""

    scrape: Scrape

    def collect(self) -> Iterable[Metric]:
        """Give every family."""
        for family, samples in self.scrape.families:
            yield self._metric(family, samples)

    def describe(self) -> Iterator[Metric]:
        """Give nothing: names are known only at a scrape."""
        return iter(())

    def _metric(self, family: Family, samples: Sequence[Sample]) -> Metric:
        common = self.scrape.labels[family.name.partition(":")[0]]
        names, values = [*common, *family.labels], [*common.values()]
        metric: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if family.kind == "histogram":
            metric = HistogramMetricFamily(family.name, family.text, labels=names)
            bounds = [*(repr(float(bound)) for bound in family.bounds), "+Inf"]
            for sample in samples:
                buckets = list(zip(bounds, map(float, sample.buckets), strict=True))
                metric.add_metric([*values, *sample.labels], buckets, sample.value)
            return metric
        metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
            family.name, family.text, labels=names
        )
        for sample in samples:
            metric.add_metric([*values, *sample.labels], float(sample.value))
        return metric
