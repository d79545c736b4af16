"""Hugging Face transformers as a process of its own, asked over lines: what the same shape does with it.

A request is a line of JSON on stdin, and its answer one on stdout: `open` (is all there, which class), `load`
(weights), `prepare` (compile for a shape), `trial` (prompts read and continued greedily). Lines that `say` something
may come before an answer. One with an `error` is the last; so is the end of stdin. It imports nothing of ours, so that
it works under any interpreter that has torch and transformers.

As `generate()` does with `cache_implementation="static"`, the prompt is read by the network as it is and the steps are
compiled (`reduce-overhead`, which is CUDA graphs). In its favour it does less than `generate()` does: the choice of the
token is compiled with the step, a shape's one cache is emptied before the clock is read, torch's checks before each
compiled call are left out, and what 16-bit networks compute in float32 may use TF32.

Longer than most files, because it may import none of the others.

Thread: any (main, and one that reads stdin)
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Fields = Mapping[str, Any]

WARM_STEPS = 4  # the first compiles, the second is recorded as a CUDA graph
WARM_RUNS = 3
LONGEST = 200  # characters of an error of somebody else


class Refusal(Exception):
    """What cannot be done, in one sentence, with a hint or without."""

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.hint = hint


class Rival:
    """A network of transformers. `tell` takes sentences for the person who waits."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._shape: tuple[int, int, int] | None = None  # rows, prompt tokens, tokens: what `_step` is compiled for
        self._step: Any = None
        self._cache: Any = None

    def open(self, asked: Fields) -> Fields:
        """`path` is a config.json, or a folder with weights; a config's weights are random, in `dtype`."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Refusal(
                f"`--reference transformers` needs torch and transformers, and {_first_line(error)}",
                "pip install torch transformers",
            ) from error
        if asked["threads"]:
            torch.set_num_threads(asked["threads"])
        self._torch: Any = torch
        self._transformers: Any = transformers
        self._asked = asked
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            with torch.device("meta"):
                empty = self._transformers.AutoModelForCausalLM.from_config(self._config(), dtype=torch.bfloat16)
        except Exception as error:
            version = transformers.__version__
            raise Refusal(f"transformers {version} makes no network of this config: {_first_line(error)}") from error
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": sys.version.split()[0],
            "device": torch.cuda.get_device_name() if self._device == "cuda" else "cpu",
            "network": type(empty).__name__,
            "attention": empty.config._attn_implementation,
            "cache": "StaticCache",
            "prefill": "not compiled",
            **{name: _version(name) for name in ("flash-linear-attention", "causal-conv1d", "flash-attn", "kernels")},
        }

    def load(self) -> Fields:
        torch, transformers = self._torch, self._transformers
        began_s = time.monotonic()
        if self._asked["random"]:
            torch.manual_seed(self._asked["seed"])
            with torch.device(self._device):  # weights are made where they stay, in their own format
                dtype = getattr(torch, self._asked["dtype"])
                network = transformers.AutoModelForCausalLM.from_config(self._config(), dtype=dtype)
        else:
            network = transformers.AutoModelForCausalLM.from_pretrained(self._asked["path"], dtype="auto")
            network.to(self._device)
        self._network = network.eval()
        if network.dtype != torch.float32:
            torch.set_float32_matmul_precision("high")
        self._wait()
        return {
            "dtype": str(network.dtype).removeprefix("torch."),
            "weights": sum(weights.numel() for weights in network.parameters()),
            "float32_products": torch.get_float32_matmul_precision(),
            "load_s": time.monotonic() - began_s,
        }

    def prepare(self, asked: Fields) -> Fields:
        """Compile for `rows`, `prompt_tokens` and `tokens`, in the best way that works, and run it warm."""
        shape = asked["rows"], asked["prompt_tokens"], asked["tokens"]
        self._shape = None
        failures: list[str] = []
        modes = ("reduce-overhead", "default", None) if self._device == "cuda" else ("default", None)
        for mode in modes:
            began_s = time.monotonic()
            self._tell(
                f"{f'compiling ({mode}) and ' if mode else ''}warming up for {shape[0]} row(s), "
                f"{shape[1]} + {shape[2]} tokens; the first time takes a minute or more"
            )
            try:
                told = self._compile(mode, shape)
            except self._torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a compiler fails with, the next way is tried
                failures.append(f"{mode or 'not compiled'}: {type(error).__name__}: {_first_line(error)}")
                self._tell(failures[-1])
                continue
            self._shape = shape
            return {"compile": mode, "failures": failures, "prepare_s": time.monotonic() - began_s, **told}
        raise Refusal(f"transformers can run no step: {failures[-1]}")

    def trial(self, asked: Fields) -> Fields:
        """Moments of `time.monotonic`, and the ids of each row. Before those of beginning, first tokens and end the
        device was waited for; at `submitted_s` the host had nothing left to do, and the device had.
        """
        prompts, tokens = asked["prompts"], asked["tokens"]
        if (len(prompts), len(prompts[0]), tokens) != self._shape:
            raise Refusal("a trial was asked for that was not prepared")
        names = ("began_s", "read_s", "submitted_s", "ended_s")
        moments, ids = self._run(prompts, tokens)
        return {**dict(zip(names, moments, strict=True)), "ids": ids, "peak_bytes": self._peak_bytes()}

    # Below: what a trial is made of.

    def _config(self) -> Any:
        auto = self._transformers.AutoConfig
        if not self._asked["random"]:
            return auto.from_pretrained(self._asked["path"]).get_text_config()
        with open(self._asked["path"], encoding="utf-8") as file:
            fields = json.load(file)
        return auto.for_model(fields.pop("model_type"), **fields).get_text_config()

    def _compile(self, mode: str | None, shape: tuple[int, int, int]) -> Fields:
        torch, network = self._torch, self._network
        rows, prompt_tokens, tokens = shape
        self._step = self._cache = None
        torch.compiler.set_stance("default")
        torch.compiler.reset()
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        counters = torch._dynamo.utils.counters
        counters.clear()

        def step(ids: Any, cache: Any) -> Any:
            return network(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

        self._step = step if mode is None else torch.compile(step, mode=mode, dynamic=False)
        self._cache = self._transformers.StaticCache(
            config=network.config.get_text_config(), max_cache_len=prompt_tokens + tokens
        )
        prompts = [[(row * 31 + at) % network.config.vocab_size for at in range(prompt_tokens)] for row in range(rows)]
        for _ in range(WARM_RUNS):
            self._run(prompts, min(tokens, WARM_STEPS + 1))
        if mode is not None:
            torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
            self._run(prompts, min(tokens, WARM_STEPS + 1))
        return {
            "graph_breaks": sum(counters["graph_break"].values()),
            "cuda_graphs_skipped": counters["inductor"]["cudagraph_skips"],
        }

    def _run(self, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[list[float], list[list[int]]]:
        torch = self._torch
        asked, found = torch.tensor(prompts), list[Any]()
        with torch.no_grad():
            self._cache.reset()
            began_s = self._wait()
            ids = asked.to(self._device)
            read = self._network(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            found.append(read.logits[:, -1:].argmax(-1))
            read_s = self._wait()
            for _ in range(tokens - 1):
                found.append(self._step(found[-1], self._cache).clone())  # a CUDA graph writes over what it gave
            submitted_s = time.monotonic()
            ended_s = self._wait()
        return [began_s, read_s, submitted_s, ended_s], torch.cat(found, dim=1).tolist()

    def _wait(self) -> float:
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        return time.monotonic()

    def _peak_bytes(self) -> int:
        """Of torch's allocator on a GPU, since the shape was prepared; else of this process."""
        if self._device == "cuda":
            return int(self._torch.cuda.max_memory_allocated())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return first[:LONGEST] + "..." * (len(first) > LONGEST) or type(error).__name__


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _answers(rival: Rival, request: Fields) -> Fields:
    """What goes back for a request. Raises nothing of torch's: a failure is an answer, too."""
    try:
        match request["do"]:
            case "open":
                return rival.open(request)
            case "load":
                return rival.load()
            case "prepare":
                return rival.prepare(request)
            case _:
                return rival.trial(request)
    except Refusal as refusal:
        return {"error": str(refusal), "hint": refusal.hint, "refused": True}
    except Exception as error:  # noqa: BLE001 - a line with the reason is all that the other end gets
        full = type(error).__name__ == "OutOfMemoryError"
        hint = "its weights lie beside ours and mlx-lm's: leave one out, or take fewer rows" if full else None
        return {"error": f"transformers failed: {type(error).__name__}: {_first_line(error)}", "hint": hint}


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")  # not inherited by what we start
    os.dup2(2, 1)  # what libraries print goes where their warnings go
    requests: queue.SimpleQueue[Fields] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        os._exit(0)  # in the middle of a compilation, too: nobody waits for it

    def send(fields: Fields) -> None:
        lines.write(json.dumps(fields) + "\n")
        lines.flush()

    threading.Thread(target=listen, daemon=True).start()
    rival = Rival(lambda text: send({"say": text}))
    while True:
        answer = _answers(rival, requests.get())
        send(answer)
        if "error" in answer:
            return


if __name__ == "__main__":
    main()
