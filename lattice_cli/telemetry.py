"""Counters and histograms, fed by what the engine says and by requests that are over; read at /metrics.

Every label has few values whatever clients send: paths that are not ours are one route, odd methods one method. The
registry is our own, so that several servers in one process count apart.

Thread: any (one thread calls `heard`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, Started

OTHER = "other"
METHODS = ("GET", "HEAD", "POST", "OPTIONS")
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
REQUEST_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

Figures = Mapping[str, tuple[str, float]]  # name -> (help, value); a name with `_total` counts


class Telemetry:
    """What happened since the start. Cost: a microsecond or two for each event."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._running_s: dict[str, float | None] = {}  # job id -> when its last text came
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "lattice_http_requests", "Requests that were answered", ["method", "route", "status"], registry=registry
        )
        self._durations = Histogram(
            "lattice_http_request_duration_seconds",
            "From the head of a request to the end of its answer",
            ["route"],
            registry=registry,
            buckets=REQUEST_S,
        )
        self._inflight = Gauge("lattice_inflight_requests", "Requests without the end of an answer", registry=registry)
        self._prompt = Counter("lattice_prompt_tokens", "Tokens of prompts", registry=registry)
        self._cached = Counter("lattice_cached_tokens", "Those that were not read anew", registry=registry)
        self._completion = Counter("lattice_completion_tokens", "Tokens of replies", registry=registry)
        self._replies = Counter("lattice_replies", "Replies that ended, by how", ["reason"], registry=registry)
        self._first_token = Histogram(
            "lattice_first_token_seconds",
            "From a request's place in the queue to its first token",
            registry=registry,
            buckets=FIRST_TOKEN_S,
        )
        self._inter_token = Histogram(
            "lattice_inter_token_seconds",
            "Between two texts of one reply, which are mostly tokens",
            registry=registry,
            buckets=INTER_TOKEN_S,
        )

    # Requests.

    def opened(self) -> None:
        """A request came."""
        self._inflight.inc()

    def answered(self, method: str, template: str | None, status: int, duration_s: float) -> None:
        """A request is over; `template` is the route as it is declared, None where there is none."""
        route = template or OTHER
        self._inflight.dec()
        self._requests.labels(method if method in METHODS else OTHER, route, str(status)).inc()
        self._durations.labels(route).observe(duration_s)

    # Events.

    def heard(self, event: Event) -> None:
        """The engine said something. Called in its order, on its thread; never raises."""
        match event:
            case Piece() | CallPart():
                now_s = self._clock()
                before_s = self._running_s.get(event.job_id)
                if before_s is not None:
                    self._inter_token.observe(now_s - before_s)
                if event.job_id in self._running_s:
                    self._running_s[event.job_id] = now_s
            case Started():
                self._running_s[event.job_id] = None
                self._prompt.inc(event.prompt_tokens)
            case Finished():
                self._ended(event.job_id, event.reason)
                self._cached.inc(event.usage.cached_tokens)  # a row that waits for another's reading starts without
                self._completion.inc(event.usage.completion_tokens)
                if event.usage.completion_tokens:
                    self._first_token.observe(event.timing.first_token_s)
            case Failed():
                self._ended(event.job_id, "failed")

    def _ended(self, job_id: str, reason: str) -> None:
        self._running_s.pop(job_id, None)
        self._replies.labels(reason).inc()

    # Reading.

    def watch(self, name: str, text: str, states: tuple[str, ...], state: Callable[[], str]) -> None:
        """A gauge of 1 for the state that holds, and of 0 for the others, asked when it is read."""

        def families() -> Iterator[Metric]:
            family = GaugeMetricFamily(name, text, labels=["state"])
            now = state()
            for one in states:
                family.add_metric([one], float(one == now))
            yield family

        self._collect(families)

    def figures(self, read: Callable[[], Figures]) -> None:
        """Numbers that somebody else keeps, asked when they are read."""

        def families() -> Iterator[Metric]:
            for name, (text, value) in read().items():
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield kind(name, text, value=value)

        self._collect(families)

    def _collect(self, families: Callable[[], Iterator[Metric]]) -> None:
        class Reader:
            def collect(self) -> Iterator[Metric]:
                return families()

        self._registry.register(Reader())

    def page(self, accept: str | None) -> tuple[bytes, str]:
        """All of it in the form that `accept` asks for, and the name of the form."""
        encode, media_type = choose_encoder(accept or "")
        return encode(self._registry), media_type
