"""Every test of MlxBackend again, and some of rows with wishes, on a quantized tiny model whose layers and functions
are the native kernels'.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import fused, install, native_choice
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home
from tests.engine.test_backend import *  # noqa: F403
from tests.engine.test_wishes import (  # noqa: F401
    test_a_choice_that_is_cancelled_leaves_the_others_exact,
    test_a_held_row_gives_what_its_schema_says_and_free_rows_stay_exact,
    test_choices_may_have_wishes_of_their_own,
    test_choices_read_their_prompt_once_in_waves_too,
    test_scores_are_the_log_softmax_of_raw_logits_of_a_direct_pass,
)
from tests.tiny import write_tiny_folder

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    native = native_choice.choose(Home(CACHE, CACHE / "models", kernels="exact"))
    if native.module is None:
        pytest.skip(native.reason)
    with file_limit_kept():
        from mlx_lm.utils import load_model
    from mlx.nn import quantize

    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    quantize(model, 32, 4, class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0)
    assert install.pack_modules(model, native.module, exact=True) > 10
    assert fused.fuse(model, native.module, half=False) is None
    install.put_functions(native.module)
    yield model
    install.take_functions()
