"""What the JSON files of a model folder say: config, generation config, tokenizer config, template.

Knows file names and fields; knows no weights and runs no code a folder brings (report 143).

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lattice_cli.errors import BrokenWeights
from lattice_cli.job import SamplingChoice

Fields = Mapping[str, Any]


def read_fields(path: Path, *, required: bool = False, hint: str = "fetch the model again") -> Fields:
    """The object in a JSON file; empty when the file is absent and not `required`. `hint` is for an absent one.

    Raises: BrokenWeights, naming the file.
    """
    value = read_json(path, hint=hint if required else None)
    if not isinstance(value, dict):
        raise BrokenWeights(f"`{path}` holds no JSON object")
    return value


def read_json(path: Path, *, hint: str | None) -> Any:
    """The value in a JSON file. An absent one is an error with `hint`, or without a hint an empty object.

    Raises: BrokenWeights, naming the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if hint is None:
            return {}
        raise BrokenWeights(f"`{path}` is missing", hint=hint) from error
    except OSError as error:
        raise BrokenWeights(f"`{path}` cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BrokenWeights(f"`{path}` is not JSON: it is not UTF-8 text") from error
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BrokenWeights(f"`{path}` is not JSON{where}", hint="fetch the file again") from error


def read_config(folder: Path, *, hint: str = "fetch the model again") -> Fields:
    """config.json with its `model_type`. `hint` says what to do where there is none.

    Raises: BrokenWeights for a missing or broken file, or one without `model_type`.
    """
    path = folder / "config.json"
    config = read_fields(path, required=True, hint=hint)
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise BrokenWeights(f"`{path}` names no `model_type`, so the architecture is unknown")
    return config


def text_config(config: Fields) -> Fields:
    """The part of a config that describes the text model: itself, or its `text_config`."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def context_tokens(config: Fields) -> int | None:
    """The trained window, None where the config names none."""
    for part in (config, text_config(config)):
        value = part.get("max_position_embeddings")
        if isinstance(value, int) and value > 0:
            return value
    return None


def end_ids(*configs: Fields) -> frozenset[int]:
    """The union of what each config calls an end: `eos_token_id`, one id or a list (report 112)."""
    found: set[int] = set()
    for config in configs:
        for part in (config, text_config(config)):
            value = part.get("eos_token_id")
            ids: Iterable[object] = value if isinstance(value, list) else (value,)
            found.update(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
    return frozenset(found)


def token_text(tokenizer_config: Fields, name: str) -> str:
    """`bos_token` or `eos_token`: a string, or an object with `content`; empty when there is none."""
    value = tokenizer_config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def read_template(folder: Path) -> str | None:
    """The chat template's jinja source: chat_template.jinja, tokenizer_config.json or chat_template.json.

    A list of named templates gives the one called `default`, else the first.
    Raises: BrokenWeights for a file that cannot be read.
    """
    source = folder / "chat_template.jinja"
    if source.is_file():
        try:
            return source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BrokenWeights(f"`{source}` cannot be read as UTF-8 text") from error
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _template_of(read_fields(folder / name).get("chat_template"))
        if template is not None:
            return template
    return None


def read_tool_template(folder: Path) -> str | None:
    """The template for conversations with tools, where a folder has one beside the usual: the one named `tool_use`
    in tokenizer_config.json, or additional_chat_templates/tool_use.jinja.

    Raises: BrokenWeights for a file that cannot be read.
    """
    source = folder / "additional_chat_templates" / "tool_use.jinja"
    if source.is_file():
        try:
            return source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BrokenWeights(f"`{source}` cannot be read as UTF-8 text") from error
    found = _named_templates(read_fields(folder / "tokenizer_config.json").get("chat_template")).get("tool_use")
    return found if isinstance(found, str) else None


def _template_of(value: object) -> str | None:
    if isinstance(value, str):
        return value
    named = _named_templates(value)
    chosen = named.get("default", next(iter(named.values()), None))
    return chosen if isinstance(chosen, str) else None


def _named_templates(value: object) -> dict[object, object]:
    items = value if isinstance(value, list) else []
    return {item.get("name"): item.get("template") for item in items if isinstance(item, dict)}


_BOUNDS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 100.0),
    "top_k": (int, 0, 2**31),
    "top_p": (float, 0.0, 1.0),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, 1e-3, 100.0),
}


def read_sampling(folder: Path) -> SamplingChoice:
    """What generation_config.json recommends; a `do_sample` in it is not looked at.

    Raises: BrokenWeights for a value of the wrong type or out of range.
    """
    path = folder / "generation_config.json"
    return sampling_choice(read_fields(path), path)


def sampling_choice(generation_config: Fields, path: Path) -> SamplingChoice:
    """`read_sampling` for a file already read; `path` is named in errors."""
    chosen: dict[str, Any] = {}
    for name, (kind, low, high) in _BOUNDS.items():
        value = generation_config.get(name)
        if value is None:
            continue
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric or not low <= value <= high or (kind is int and value != int(value)):
            raise BrokenWeights(f"`{path}` sets `{name}` to {json.dumps(value)}, which is no value for it")
        chosen[name] = kind(value)
    return SamplingChoice(**chosen)
