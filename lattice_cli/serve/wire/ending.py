"""What ends a reply beside its length: stop texts, stop tokens, and what becomes of end tokens.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_cli.errors import InvalidField
from lattice_cli.serve.wire.schema import SharedFields, max_tokens_of

MAX_STOPS = 16
MAX_STOP_IDS = 64


@dataclass(frozen=True, slots=True)
class Ending:
    """As `Limits` has it: `stop_ids` end a reply as its end tokens do; with `ignore_end` those are tokens like any
    other, and before `min_tokens` none can be drawn; with `keep_stop` the stop text that ended the answer is sent.
    """

    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False
    min_tokens: int = 0
    keep_stop: bool = False


NO_ENDING = Ending()


def ending_of(fields: SharedFields) -> Ending:
    """What a request says of it. Raises: InvalidField."""
    ids = fields.stop_token_ids or []
    if len(ids) > MAX_STOP_IDS:
        raise InvalidField(f"`stop_token_ids` holds more than {MAX_STOP_IDS} ids", param="stop_token_ids")
    most = max_tokens_of(fields, least=0)
    if most is not None and (fields.min_tokens or 0) > most:
        raise InvalidField(f"`min_tokens` must be at most `max_tokens` ({most})", param="min_tokens")
    return Ending(
        stop=_stops(fields),
        stop_ids=tuple(dict.fromkeys(ids)),
        ignore_end=bool(fields.ignore_eos),
        min_tokens=fields.min_tokens or 0,
        keep_stop=bool(fields.include_stop_str_in_output),
    )


def _stops(fields: SharedFields) -> tuple[str, ...]:
    """The texts that end a reply; `[]` is none."""
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidField(f"`stop` holds more than {MAX_STOPS} texts", param="stop", code="invalid_stop")
    for index, text in enumerate(stops):
        if not text:
            place = "stop" if isinstance(fields.stop, str) else f"stop[{index}]"
            raise InvalidField(f"`{place}` must not be empty", param=place, code="invalid_stop")
    return tuple(stops)
