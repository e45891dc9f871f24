"""Metrics for Prometheus: the state of the studies, and the time of requests to this replica."""

from collections import Counter
from collections.abc import Iterator
from typing import final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phyla.records import StudyState
from phyla.store import Store

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)


@final
class Figures(Collector):
    """Reads the store on each scrape, so that replicas of a service agree about studies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.seconds = Histogram(
            "phyla_request_seconds",
            "Time of requests, by route and status",
            ("route", "status"),
            buckets=BUCKETS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Return nothing, because the metrics depend on the studies."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return how many studies are in each state, and the metrics of running and draining ones."""
        known = self._store.studies()
        counts = Counter(study.state for study in known)
        studies = GaugeMetricFamily("phyla_studies", "Studies and watched runs by state", labels=("state",))
        for state in StudyState:
            studies.add_metric((state,), counts[state])
        trials = GaugeMetricFamily("phyla_trials", "Trials by state", labels=("study", "state"))
        leases = GaugeMetricFamily("phyla_leases", "Jobs that workers hold", labels=("study",))
        waiting = GaugeMetricFamily("phyla_evaluations_queued", "Evaluations that wait", labels=("study",))
        for study in known:
            if study.state in (StudyState.RUNNING, StudyState.DRAINING):
                with self._store.reader(study.id) as reader:
                    for name, count in reader.counts().items():
                        trials.add_metric((study.name, name), count)
                    leases.add_metric((study.name,), len(reader.running()))
                    waiting.add_metric((study.name,), reader.open_groups())
        yield from (studies, trials, leases, waiting)
