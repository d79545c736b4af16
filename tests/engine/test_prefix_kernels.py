"""Every test of the prefix cache on tiny networks again, and some of its disk tier, on the native kernels' pages.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.model.network import make_caches
from tests.engine import test_backend_kernels
from tests.engine.test_prefix_backend import *  # noqa: F403
from tests.engine.test_prefix_backend import Floor, chat_of
from tests.engine.test_prefix_disk import (  # noqa: F401
    test_a_conversation_goes_on_after_a_restart,
    test_a_damaged_file_is_dropped_with_one_line,
    test_a_file_that_was_put_there_is_dropped,
    test_conversations_over_restarts_stay_exact,
)

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

network = test_backend_kernels.network


def test_memory_stays_within_the_budget_and_comes_back(network: Any) -> None:
    """In pages, which mlx does not count: one that two entries share is there once."""
    native = make_caches(network)[0]._native
    gc.collect()
    before = native.state_bytes()
    floor = Floor(network, budget=3_000_000)
    for seed in range(12):
        floor.run(*(floor.job((*chat_of(seed, 130), *chat_of(seed * 4 + row, 60))) for row in range(4)))
        mx.synchronize()  # the pass that is one step ahead of the last token holds pages, too
        assert native.state_bytes() - before == floor.cache.stats.bytes <= 3_000_000
    assert floor.cache.stats.evictions > 0
    floor.cache.clear()
    assert native.state_bytes() == before
