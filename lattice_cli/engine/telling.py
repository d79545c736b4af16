"""What a job asks for, as JSON: what a scripted reply with `tell` says first.

It is said from below the whole path of a request, so it shows what became of a body: the rendered prompt, its
length, every sampling value and every limit.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any

from lattice_cli.job import Job

_RARE = ("logit_bias", "stop_ids", "ignore_end", "min_tokens", "keep_stop", "deadline_s")


def tell(job: Job) -> bytes:
    """One JSON object in ASCII without spaces; of `_RARE` values, those that were asked for.

    Stop strings are escaped to the last letter, so that naming them does not end the reply.
    """
    limits = asdict(job.limits)
    stops = ",".join(map(_escaped, limits.pop("stop")))
    limits["stop_ids"] = sorted(limits["stop_ids"])
    rare = {"logprobs": job.logprobs, "constraint": job.constraint, "speech": job.speech}
    told = {
        "prompt": job.prompt.text,
        "prompt_tokens": len(job.prompt.ids),
        "opens_in": job.prompt.opens_in.value,
        "reasoning_apart": job.reasoning_apart,
        "choice": job.choice,
        "sampling": _told(asdict(job.sampling)),
        "limits": _told(limits),
        **{name: asdict(v) if is_dataclass(v) else v for name, v in rare.items() if v is not None},
    }
    text = json.dumps(told, separators=(",", ":"))
    return f'{text[:-1]},"stop":[{stops}]}}'.encode("ascii")


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or name not in _RARE}


def _escaped(text: str) -> str:
    data = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2)) + '"'
