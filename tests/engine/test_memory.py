"""Who fits, who waits, who is refused, and what gives way.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.memory import GIBIBYTE, Growing, Memory, RowCost
from lattice_cli.engine.row import Row
from lattice_cli.errors import PromptTooLong
from lattice_cli.events import Event, Failed, Finished, Started
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock, CountingBackend, counted, job, text_of
from tests.engine.letters import LETTERS

pytestmark = pytest.mark.pure

PAGES = RowCost((Growing(100, 128),), fixed_bytes=1000, padded=False)
PADDED = RowCost((Growing(100, 1),), fixed_bytes=0, padded=True)


def row(name: str, prompt_tokens: int, max_tokens: int) -> Row:
    return Row(job(name, prompt_tokens, max_tokens), LETTERS)


def test_pages_are_whole_and_recurrent_states_do_not_grow() -> None:
    assert [PAGES.of(tokens) for tokens in (0, 1, 128, 129)] == [1000, 13_800, 13_800, 26_600]


def test_a_rotating_cache_grows_no_further_than_its_window() -> None:
    cost = RowCost((Growing(10, 256), Growing(10, 256, most_tokens=512)), 0, padded=True)
    assert cost.of(256) == 5120
    assert cost.of(10_240) == 102_400 + 5120


def test_padded_rows_cost_as_much_as_the_longest_and_a_newcomer_twice() -> None:
    """One row of 8,000 tokens and seven of 100 take eight times the long one, as mlx-lm's caches are."""
    assert PADDED.batch([8000, *[100] * 7]) == 8 * 800_000 + 10_000
    assert PAGES.batch([8000, *[100] * 7]) == PAGES.of(8000) + 7 * PAGES.of(100)


@pytest.mark.parametrize("cost", [PAGES, PADDED])
@pytest.mark.parametrize("limit", [0, 999, 13_800, 50_000, 10**9])
def test_the_longest_row_that_fits_is_found_exactly(cost: RowCost, limit: int) -> None:
    most = cost.most_tokens(limit, 4096)
    assert most == 0 or cost.batch((most,)) <= limit
    assert most == 4096 or cost.batch((most + 1,)) > limit


def test_what_fits_only_later_waits_and_what_never_fits_is_refused_with_the_numbers() -> None:
    backend = CountingBackend()
    memory = Memory(PADDED, 40_000, window=4096)  # 400 tokens of all rows together
    engine = Engine(LETTERS, backend, EngineSettings(max_rows=8), Clock(), memory)
    engine.add(job("a", 50, 50))
    engine.add(job("b", 90, 10))  # 2 x 100 tokens, and itself once more
    engine.add(job("c", 50, 60))  # waits for one of them to end
    engine.add(job("never", 100, 200))
    events: list[Event] = []
    peak = 0
    while not engine.idle:
        events += engine.step()
        peak = max(peak, len(backend.rows))
    assert peak == 2
    assert [event.job_id for event in events if isinstance(event, Started)] == ["a", "b", "c"]
    (refused,) = [event.error for event in events if isinstance(event, Failed)]
    assert (refused.status, refused.code, refused.param) == (400, "context_length_exceeded", "max_tokens")
    assert refused.sentence() == (
        "300 tokens would take 0.1 MiB of memory, and there are 0.0 MiB for all replies "
        "(hint: send `max_tokens` of at most 100)"
    )
    assert len([event for event in events if isinstance(event, Finished)]) == 3
    assert memory.used(()) == 0


def test_replies_without_a_limit_do_not_wait_for_what_they_will_not_say() -> None:
    """A client that names no limit may say as much as the window holds, and says a few words: eight of them run at once
    where there is memory for two whole windows.
    """
    backend = CountingBackend()
    engine = Engine(LETTERS, backend, EngineSettings(max_rows=8), Clock(), Memory(PAGES, PAGES.of(8192) * 2, 8192))
    for number in range(8):
        engine.add(job(f"{number}", 10, 8000))
    while len(backend.inserted) < 8:
        engine.step()
        assert backend.inserted, "nobody began"
        assert len(engine._scheduler.running) == 8, "some wait"


def test_a_row_that_others_outgrow_waits_and_goes_on_from_what_it_said() -> None:
    backend = CountingBackend()
    memory = Memory(PADDED, 20_000, window=4096, growth_tokens=20)  # 200 tokens, one row twice
    engine = Engine(LETTERS, backend, EngineSettings(max_rows=8), Clock(), memory)
    for name in "abc":
        engine.add(job(name, 10, 85))
    events: list[Event] = []
    peak = 0
    while not engine.idle:
        events += engine.step()
        peak = max(peak, len(backend.rows))
        assert memory.used(engine._scheduler.running.values()) <= 20_000
    assert peak == 3
    assert len(backend.inserted) > 3, "nobody had to give its place back"
    assert [event.job_id for event in events if isinstance(event, Started)] == ["a", "b", "c"]
    assert [event.job_id for event in events if isinstance(event, Finished)] == ["a", "b", "c"]
    assert {name: text_of(events, name) for name in "abc"} == {name: counted(10, 85) for name in "abc"}


def test_a_prompt_that_does_not_fit_itself_must_be_shorter() -> None:
    with pytest.raises(PromptTooLong, match=r"5\.0 GiB of memory, and there are 4\.0 GiB") as refused:
        Memory(replace(PADDED, growing=(Growing(GIBIBYTE // 400, 1),)), 4 * GIBIBYTE, 4096).check(row("a", 1000, 1))
    assert (refused.value.param, refused.value.hint) == (None, "shorten the prompt")


def test_no_row_is_counted_longer_than_the_window() -> None:
    memory = Memory(PADDED, 250_000, window=1000)
    memory.check(row("a", 10, 100_000))


def test_the_prefix_cache_gives_way_before_a_row_waits() -> None:
    cached = {"bytes": 30_000}
    released: list[int] = []

    def release(size: int) -> None:
        released.append(size)
        cached["bytes"] = max(0, cached["bytes"] - size)

    memory = Memory(PADDED, 40_000, 4096, lambda: cached["bytes"], release)
    assert memory.fits(row("a", 20, 30), ())  # 10,000, and there they are
    assert released == []
    assert memory.fits(row("b", 50, 50), ())
    assert released == [10_000]
    assert not memory.fits(row("c", 100, 101), ())  # of no use to release anything for it
    assert released == [10_000]
    memory.give_way()
    assert cached["bytes"] == 0
