"""A message's content in lattice_serve 0.6.1: a string, or an array of typed parts.

Read whole first and then tried as one and the other, so that a fault inside is a fault of the content.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lattice_cli.errors import BadRequest
from lattice_cli.serve.wire.serde.reader import Reader


class Part(NamedTuple):
    """`text` is that of a text part, empty for others."""

    kind: str
    text: str = ""


class Members(list[tuple[str, Any]]):
    """An object as it came, names given twice included."""


class Unfit(Exception):
    """No content has this shape."""


def content(reader: Reader) -> str | list[Part]:
    """See `Shape`."""
    value = reader.anything(Members)
    if isinstance(value, str):
        return value
    try:
        return [_part(item) for item in _array(value)]
    except Unfit:
        reader.fail("data did not match any variant of untagged enum MessageContent", data=True)


def text_of(said: str | Sequence[Part]) -> str:
    """The joined text. Raises: BadRequest naming the first part that is none."""
    if isinstance(said, str):
        return said
    for kind, _ in said:
        if kind == "image_url":
            raise BadRequest("image input requires a vision-capable model", code="unsupported_feature")
        if kind != "text":
            raise BadRequest(
                f"unsupported content part type '{kind}'; only 'text' parts are accepted", code="unsupported_feature"
            )
    return "".join(part.text for part in said)


def _part(item: Any) -> Part:
    kind, text, image = _fields(item, ("type", "text", "image_url"), required=0 if isinstance(item, Members) else 1)
    _optional_text(kind)
    _optional_text(text)
    if image is not None:
        url, detail = _fields(image, ("url", "detail"), required=1)
        _optional_text(detail)
        if not isinstance(url, str):
            raise Unfit
    if (kind == "text" and text is None) or (kind == "image_url" and image is None):
        raise Unfit
    return Part("<missing>" if kind is None else kind, text or "" if kind == "text" else "")


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list) or isinstance(value, Members):
        raise Unfit
    return value


def _fields(value: Any, names: Sequence[str], required: int) -> list[Any]:
    """The values of these names, None where one is not there; the first `required` must be."""
    if isinstance(value, Members):
        known = [(name, inner) for name, inner in value if name in names]
        found = dict(known)
        if len(found) < len(known) or any(name not in found for name in names[:required]):
            raise Unfit
        return [found.get(name) for name in names]
    listed = _array(value)
    if not required <= len(listed) <= len(names):
        raise Unfit
    return [*listed, *[None] * (len(names) - len(listed))]


def _optional_text(value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise Unfit
