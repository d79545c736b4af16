"""What a job asks for, as JSON: what a scripted reply with `tell` says first.

It is said from below the whole path of a request, so it shows what became of a body: the rendered prompt, its
length, every sampling value and every limit.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import asdict

from lattice_cli.job import Job


def tell(job: Job) -> bytes:
    """One JSON object in ASCII without spaces. Stop strings are escaped to the last letter, so that naming them
    does not end the reply.
    """
    limits = asdict(job.limits)
    stops = ",".join(map(_escaped, limits.pop("stop")))
    limits["stop_ids"] = sorted(limits["stop_ids"])
    told = {
        "prompt": job.prompt.text,
        "prompt_tokens": len(job.prompt.ids),
        "opens_in": job.prompt.opens_in.value,
        "reasoning_apart": job.reasoning_apart,
        "choice": job.choice,
        "sampling": asdict(job.sampling),
        "limits": limits,
        "logprobs": job.logprobs,
        "constraint": asdict(job.constraint) if job.constraint else None,
        "speech": asdict(job.speech) if job.speech else None,
    }
    text = json.dumps(told, separators=(",", ":"))
    return f'{text[:-1]},"stop":[{stops}]}}'.encode("ascii")


def _escaped(text: str) -> str:
    data = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2)) + '"'
