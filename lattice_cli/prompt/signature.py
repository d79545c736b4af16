"""What types a tool's parameters have, by its JSON schema.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lattice_cli.job import Tool

_NAMES = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean",
    "dict": "object", "list": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_OF_VALUE = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
MOST_DEPTH = 16

Types = frozenset[str]
TEXT: Types = frozenset({"string"})
ANY: Types = frozenset()


class Signature:
    """The parameters of one tool."""

    def __init__(self, tool: Tool) -> None:
        schema = json.loads(tool.parameters)
        self.schema: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        properties = self.schema.get("properties")
        self.properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}

    def types(self, name: str) -> Types:
        """The types a parameter may have: text for one that the schema does not name, ANY where it names no type."""
        return types_of(self.properties[name], self.schema) if name in self.properties else TEXT


def types_of(schema: Any, whole: Mapping[str, Any], depth: int = 0) -> Types:
    """The JSON types that a schema allows, ANY where it does not say. `whole` is where its references lead."""
    if not isinstance(schema, dict) or depth > MOST_DEPTH:
        return ANY
    found: set[str] = set()
    kinds = schema.get("type")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if isinstance(kind, str):
            found.add(_NAMES.get(kind.strip().lower(), kind.strip().lower()))
    if not found:
        for word in ("anyOf", "oneOf", "allOf"):
            options = schema.get(word)
            for option in options if isinstance(options, list) else ():
                found |= types_of(option, whole, depth + 1)
    if not found and isinstance(schema.get("$ref"), str):
        found |= types_of(_referred(schema["$ref"], whole), whole, depth + 1)
    if not found:
        const = [schema["const"]] if "const" in schema else []
        values = schema["enum"] if isinstance(schema.get("enum"), list) else const
        found |= {_OF_VALUE.get(type(value), "null") for value in values}
    if schema.get("nullable") is True and found:
        found.add("null")
    return frozenset(found)


def _referred(path: str, whole: Mapping[str, Any]) -> Any:
    place: Any = whole
    for step in path.removeprefix("#/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place
