"""Numbers out of events, read as Prometheus reads them.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lattice_cli.errors import EngineFault
from lattice_cli.events import CallPart, Failed, Finished, Piece, Started, Timing, Usage
from lattice_cli.job import Channel
from lattice_cli.telemetry import Telemetry

pytestmark = pytest.mark.pure


def samples(telemetry: Telemetry) -> dict[str, float]:
    """Every sample but the process's own, as `name{label=value}`."""
    data, media_type = telemetry.page(None)
    assert media_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(data.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            if not sample.name.startswith("process_"):
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


class Clock:
    """Tells the times that it was given."""

    def __init__(self, *times_s: float) -> None:
        self._times: Iterator[float] = iter(times_s)

    def __call__(self) -> float:
        return next(self._times)


def test_a_scripted_event_list_is_counted() -> None:
    telemetry = Telemetry(Clock(1.0, 1.004, 1.5, 2.0))
    telemetry.heard(Started("a", 10, 4))
    telemetry.heard(Piece("a", Channel.ANSWER, "x"))  # at 1.0: nothing came before it
    telemetry.heard(Piece("a", Channel.ANSWER, "y"))  # after 4 ms
    telemetry.heard(Started("b", 7))
    telemetry.heard(CallPart("b", 0, "f", "{"))  # at 1.5
    telemetry.heard(Finished("a", "stop", Usage(10, 2, 4), Timing(first_token_s=0.03)))
    telemetry.heard(Failed("b", EngineFault("no")))
    telemetry.heard(Piece("c", Channel.ANSWER, "z"))  # of a job that is over: no gap, no leak
    telemetry.heard(Failed("d", EngineFault("it never had a slot")))
    found = samples(telemetry)
    assert found["lattice_prompt_tokens_total"] == 17
    assert found["lattice_cached_tokens_total"] == 4
    assert found["lattice_completion_tokens_total"] == 2
    assert found["lattice_replies_total{reason=stop}"] == 1
    assert found["lattice_replies_total{reason=failed}"] == 2
    assert found["lattice_inter_token_seconds_count"] == 1
    assert found["lattice_inter_token_seconds_bucket{le=0.0025}"] == 0
    assert found["lattice_inter_token_seconds_bucket{le=0.005}"] == 1
    assert found["lattice_first_token_seconds_bucket{le=0.025}"] == 0
    assert found["lattice_first_token_seconds_bucket{le=0.05}"] == 1


def test_labels_stay_few_whatever_clients_send() -> None:
    """A label for each path would let a scanner fill the memory."""
    telemetry = Telemetry()
    for number in range(300):
        telemetry.opened()
        telemetry.answered(f"M{number}", None, 404, 0.01)
    telemetry.opened()
    telemetry.answered("GET", "/v1/models/{model_id:path}", 200, 0.01)
    found = samples(telemetry)
    assert found["lattice_http_requests_total{method=other,route=other,status=404}"] == 300
    assert len([name for name in found if name.startswith("lattice_http_requests_total")]) == 2
    assert found["lattice_inflight_requests"] == 0


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = Telemetry(), Telemetry()
    first.heard(Started("a", 10))
    assert samples(first)["lattice_prompt_tokens_total"] == 10
    assert samples(second)["lattice_prompt_tokens_total"] == 0


def test_openmetrics_comes_when_it_is_asked_for() -> None:
    data, media_type = Telemetry().page("application/openmetrics-text; version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    assert data.endswith(b"# EOF\n")


def test_states_and_figures_are_asked_when_they_are_read() -> None:
    telemetry, state, rows = Telemetry(), ["loading"], [0.0]
    telemetry.watch("lattice_engine_state", "it", ("loading", "ready"), lambda: state[0])
    telemetry.figures(lambda: {"lattice_rows": ("rows", rows[0]), "lattice_cache_hits_total": ("hits", 5)})
    state[0], rows[0] = "ready", 3.0
    found = samples(telemetry)
    assert (found["lattice_engine_state{state=loading}"], found["lattice_engine_state{state=ready}"]) == (0, 1)
    assert (found["lattice_rows"], found["lattice_cache_hits_total"]) == (3, 5)
