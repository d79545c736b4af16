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
    """`schema` beside `json_object` or `json_schema` is llama-server's."""

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
    if said is None:
        return []
    _refuse_stray(said)
    match said.type:
        case "text":
            return []
        case "json_object":
            return [Bound(_schema(said.schema or {}), "response_format")]
        case "json_schema" if said.schema is not None:
            return [Bound(_schema(said.schema), "response_format.schema")]
        case "json_schema":
            return [_named_schema(said.json_schema)]
    kind = json.dumps(said.type[:64])
    raise InvalidField(
        f"`response_format.type` is {kind}, and none of text, json_object and json_schema",
        param="response_format.type",
    )


def _refuse_stray(said: ResponseFormat) -> None:
    """A schema where nobody would look for it would bound nothing. Raises: InvalidField."""
    stray = None
    if said.json_schema is not None and (said.schema is not None or said.type in ("text", "json_object")):
        stray = "json_schema"
    elif said.schema is not None and said.type == "text":
        stray = "schema"
    if stray is not None:
        beside = "`response_format.schema`" if said.schema and stray == "json_schema" else f'the type "{said.type}"'
        place = f"response_format.{stray}"
        raise InvalidField(f"`{place}` does not go with {beside}", param=place, hint='the type is "json_schema"')


def _named_schema(said: JsonSchema | None) -> Bound:
    place = "response_format.json_schema" + ("" if said is None else ".schema")
    if said is None or said.schema is None:
        raise InvalidField(f"`{place}` is missing", param=place)
    if not isinstance(said.schema, dict | bool):
        raise InvalidField(f"`{place}` must be an object", param=place)
    return Bound(_schema(said.schema), place)


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
