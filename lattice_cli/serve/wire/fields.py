"""The fields that clients of OpenAI-like servers send, beside those we honour: which are harmless, and at
which values the others change nothing.

A known field that would change the output is refused unless it holds a value listed here as neutral; a
field that nobody knows is accepted and named in the answer's headers. Sources: openai-python 3.57's
request types; the request schemas of vLLM, llama-server, Ollama, LM Studio and mlx_lm.server.

Thread: any
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lattice_cli.errors import UnsupportedField

# They say something about the caller, the bill or the server's memory, never about the text.
HARMLESS = frozenset({
    "cache_prompt", "cache_salt", "guided_decoding_backend", "keep_alive", "metadata", "num_draft_tokens", "priority",
    "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "store", "ttl", "user", "verbosity",
})  # fmt: skip

# Name -> the values beside null at which it changes nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
    # vLLM, SGLang
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    # llama-server; what only tunes a thing that is off is neutral at that server's default
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1,),
    "dry_sequence_breakers": ([],),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "id_slot": (-1,),
    "json_schema": ({},),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "n_keep": (0,),
    "n_probs": (0,),
    "repeat_last_n": (-1,),
    "return_progress": (False,),
    "samplers": (),
    "t_max_predict_ms": (0,),
    "tfs_z": (1,),
    "thinking_forced_open": (False,),
    "timings_per_token": (False,),
    "top_a": (0,),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": (0, 0.1),
    # Ollama
    "format": ("",),
    "images": ([],),
    "num_ctx": (),
    "num_keep": (),
    "options": ({},),
    "raw": (False,),
    "suffix": ("",),
    "template": ("",),
    "think": (),
    # mlx_lm.server, Lattice
    "adapters": (),
    "draft_model": (),
    "enable_thinking": (),
    "frequency_context_size": (),
    "presence_context_size": (),
    "repetition_context_size": (),
    "role_mapping": (),
    "thinking": (),
}

INSTEAD = {"functions": "tools", "function_call": "tool_choice"}

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_NAMES = 20


def refuse_unsupported(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises: UnsupportedField naming the first field that asks for what we cannot do.

    `known` are the names that this route honours, whatever the table says of others.
    """
    for name, value in body.items():
        if name not in NEUTRAL or value is None or name in known:
            continue
        if not any(_same(value, neutral) for neutral in NEUTRAL[name]):
            raise UnsupportedField(f"`{name}` is not supported", param=name, hint=_way_out(name))


def _way_out(name: str) -> str:
    if name in INSTEAD:
        return f"send `{INSTEAD[name]}`"
    return f"leave it out, or send {' or '.join(json.dumps(value) for value in (None, *NEUTRAL[name]))}"


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: `true` is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def unknown_names(names: Iterable[str], known: frozenset[str]) -> tuple[str, ...]:
    """The names that neither we nor the tables know, each once, in order."""
    return tuple(dict.fromkeys(n for n in names if n not in known and n not in HARMLESS and n not in NEUTRAL))


def header_names(names: Iterable[str]) -> list[str]:
    """Those that can stand in a header or on a line of a log, as many as fit there."""
    return [name for name in names if NAME.fullmatch(name)][:MOST_NAMES]
