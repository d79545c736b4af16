"""What a reply's text must be: OpenAI's `response_format`, vLLM's `guided_*` and `structured_outputs`, and
llama-server's `json_schema` and `grammar`, all of them one constraint.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from lattice_cli.errors import InvalidField, UnsupportedField
from lattice_cli.job import Constraint

ANY_OBJECT = "{}"


class JsonSchema(msgspec.Struct):
    """`strict` or not, a schema is enforced."""

    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`schema` beside `json_object` is llama-server's."""

    type: str
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class FormatFields(msgspec.Struct):
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None


class Bound(NamedTuple):
    """A constraint, and the field that asked for it."""

    constraint: Constraint
    param: str


# vLLM's newer names inside `structured_outputs` -> the older ones.
NEWER = {"json": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar", "choice": "guided_choice"}


def bound_of(fields: FormatFields) -> Bound | None:
    """None where any text will do. Raises: InvalidField (two of them, or none that makes sense), UnsupportedField."""
    bounds = [*_formats(fields), *_guides(fields), *_structured(fields.structured_outputs or {})]
    if len(bounds) > 1:
        raise InvalidField(f"`{bounds[0].param}` and `{bounds[1].param}` both bound the text", param=bounds[1].param)
    return bounds[0] if bounds else None


def _formats(fields: FormatFields) -> list[Bound]:
    said = fields.response_format
    if said is None or said.type == "text":
        return []
    if said.type == "json_object":
        return [Bound(_schema(said.schema or {}), "response_format")]
    if said.type == "json_schema":
        if said.json_schema is None or said.json_schema.schema is None:
            place = "response_format.json_schema" + ("" if said.json_schema is None else ".schema")
            raise InvalidField(f"`{place}` is missing", param=place)
        place = "response_format.json_schema.schema"
        if not isinstance(said.json_schema.schema, dict | bool):
            raise InvalidField(f"`{place}` must be an object", param=place)
        return [Bound(_schema(said.json_schema.schema), place)]
    kind = json.dumps(said.type[:64])
    raise InvalidField(
        f"`response_format.type` is {kind}, and none of text, json_object and json_schema",
        param="response_format.type",
    )


def _guides(fields: FormatFields) -> list[Bound]:
    bounds: list[Bound] = []
    if fields.guided_json is not None:
        bounds.append(Bound(_schema(fields.guided_json), "guided_json"))
    if fields.guided_regex is not None:
        bounds.append(Bound(Constraint("regex", fields.guided_regex), "guided_regex"))
    if fields.guided_grammar is not None:
        bounds.append(Bound(Constraint("lark", fields.guided_grammar), "guided_grammar"))
    if fields.guided_choice is not None:
        choices = json.dumps(fields.guided_choice, ensure_ascii=False)
        bounds.append(Bound(Constraint("choice", choices), "guided_choice"))
    if fields.json_schema:
        bounds.append(Bound(_schema(fields.json_schema), "json_schema"))
    if fields.grammar:
        bounds.append(Bound(Constraint("lark", fields.grammar), "grammar"))
    return bounds


def _structured(said: Mapping[str, Any]) -> list[Bound]:
    given = {name: value for name, value in said.items() if value is not None and value is not False}
    bounds: list[Bound] = []
    for name, value in given.items():
        place = f"structured_outputs.{name}"
        if name == "json_object":
            bounds.append(Bound(Constraint("json_schema", ANY_OBJECT), place))
        elif name in NEWER:
            try:
                inner = msgspec.convert({NEWER[name]: value}, FormatFields)
            except msgspec.ValidationError:
                raise InvalidField(f"`{place}` has the wrong type", param=place) from None
            bounds += [Bound(bound.constraint, place) for bound in _guides(inner)]
        else:
            known = ", ".join((*NEWER, "json_object"))
            raise UnsupportedField(f"`{place}` is not supported", param=place, hint=f"there are {known}")
    return bounds


def _schema(said: str | Mapping[str, Any] | bool) -> Constraint:
    """A schema as JSON; a text is one already."""
    return Constraint("json_schema", said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))
