"""mlx-lm's own generation loop over mlx-lm's own network: what a model does without anything of ours.

Nothing is packed, fused, widened or patched: the network keeps the number format of its checkpoint, and mlx's
functions are mlx's own while it runs. One thing of ours stays in the process: the BLAS that was loaded before mlx.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lattice_cli.engine.measure_trial import RowTimes
from lattice_cli.model.card import ModelSource
from lattice_cli.model.random_weights import RandomModel


def reference_network(model: ModelSource | RandomModel) -> Any:
    """The network as mlx-lm has it, evaluated. A GGUF file is read by our reader, its groups kept packed.

    Raises: ModelError, UsageError. Cost: as loading.
    """
    import mlx.core as mx

    from lattice_cli.model import folder as files
    from lattice_cli.model.load import find_file, open_gguf
    from lattice_cli.model.network import load_folder, translated
    from lattice_cli.model.random_weights import random_network, read_config

    if isinstance(model, RandomModel):
        path, network = model.config, random_network(model, read_config(model.config))
    elif model.kind == "gguf":
        path, network = model.path, open_gguf(find_file(model.path), None)[1]
    else:
        path, network = model.path, load_folder(model.path, files.read_config(model.path))
    with translated(path):
        mx.eval(network.parameters())
    return network


def run_reference(
    network: Any,
    prompt: Sequence[int],
    max_tokens: int,
    native: Any | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RowTimes:
    """One greedy reply of exactly `max_tokens` tokens by `mlx_lm.generate.generate_step` with its own defaults.

    Its loop says when a prompt's last token but one is read; that is `read_s`. `native` is the module whose functions
    stand in mlx's places now, and are put back afterwards.
    """
    import mlx.core as mx

    from lattice_cli.model.upstream import file_limit_kept

    with file_limit_kept():
        from mlx_lm.generate import generate_step

    began_s, read_s, moments = clock(), list[float](), list[float]()
    submits_s: list[float | None] = []

    def read(done: int, total: int) -> None:
        if done >= total - 1:
            read_s.append(clock() - began_s)

    with _unpatched(native), _submitted(clock) as submitted:
        asked_s = clock()
        for _token, _scores in generate_step(
            mx.array(list(prompt)), network, max_tokens=max_tokens, prompt_progress_callback=read
        ):
            moments.append(clock() - began_s)
            submits_s.append(_since(asked_s, submitted))
            asked_s = clock()
    return RowTimes(len(prompt), 0, len(moments), 0, read_s[0], tuple(moments), began_s, tuple(submits_s))


def run_reference_rows(
    network: Any,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    native: Any | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[RowTimes]:
    """Several greedy replies at once by mlx-lm's own `BatchGenerator`, which serves its server.

    It does not say when a prompt is read, so `read_s` is its row's first token.
    """
    from lattice_cli.model.upstream import file_limit_kept

    with file_limit_kept():
        from mlx_lm.generate import BatchGenerator

    rows = len(prompts)
    began_s = clock()
    moments: dict[int, list[float]] = {}
    submits_s: dict[int, list[float | None]] = {}
    with _unpatched(native), _submitted(clock) as submitted:
        batches: Any = BatchGenerator(
            network, max_tokens=max_tokens, completion_batch_size=rows, prefill_batch_size=rows
        )
        try:
            numbers = batches.insert([list(prompt) for prompt in prompts])
            moments |= {number: [] for number in numbers}
            submits_s |= {number: [] for number in numbers}
            while any(len(times) < max_tokens for times in moments.values()):
                asked_s = clock()
                for response in batches.next_generated():
                    moments[response.uid].append(clock() - began_s)
                    submits_s[response.uid].append(_since(asked_s, submitted))
        finally:
            batches.close()
    return [
        RowTimes(
            len(prompt), 0, len(times := moments[number]), 0, times[0], tuple(times), began_s, tuple(submits_s[number])
        )
        for prompt, number in zip(prompts, numbers, strict=True)
    ]


def _since(asked_s: float, submitted: Sequence[float]) -> float | None:
    """From asking for a token to the newest step's submission; None where nothing was submitted since."""
    return submitted[-1] - asked_s if submitted and submitted[-1] > asked_s else None


@contextmanager
def _submitted(clock: Callable[[], float]) -> Iterator[list[float]]:
    """The moments at which a step was submitted, which is `mx.async_eval` in both of mlx-lm's loops."""
    import mlx.core as mx

    moments: list[float] = []
    original: Any = mx.async_eval

    def submit(*arrays: Any) -> None:
        original(*arrays)
        moments.append(clock())

    mx.async_eval = submit
    try:
        yield moments
    finally:
        mx.async_eval = original


@contextmanager
def _unpatched(native: Any | None) -> Iterator[None]:
    """mlx's functions are its own inside, and as they were afterwards."""
    from lattice_cli.kernels import install

    install.take_functions()
    try:
        yield
    finally:
        if native is not None:
            install.put_functions(native)
