"""What answers at /tokenize and /detokenize.

Thread: request
"""

from __future__ import annotations

from lattice_cli.errors import panics_told
from lattice_cli.serve.admission import Admission
from lattice_cli.serve.prompts import check_ids
from lattice_cli.serve.resources import Request, Response, read_body, say
from lattice_cli.serve.wire import Wire
from lattice_cli.serve.wire.openai import as_page
from lattice_cli.serve.wire.tokenize import read_detokenize, read_tokenize, told_text, told_tokens


class Tokens:
    """POST: ids of a text or a chat, and the text of ids; no engine is asked."""

    def __init__(self, admission: Admission, wire: Wire, max_body_bytes: int) -> None:
        self._admission = admission
        self._wire = wire
        self._max_body_bytes = max_body_bytes

    def on_post_tokenize(self, req: Request, resp: Response) -> None:
        words = read_tokenize(read_body(req, self._wire, self._max_body_bytes))
        with panics_told("reading the request"):
            card, (prompt,) = self._admission.prompts(words.ask, req.context.visit)
        say(resp, as_page(told_tokens(prompt.ids, card, spelled=words.spelled)))

    def on_post_detokenize(self, req: Request, resp: Response) -> None:
        ask = read_detokenize(read_body(req, self._wire, self._max_body_bytes))
        card = self._admission.card_for(ask, req.context.visit)
        (ids,) = ask.prompts
        assert not isinstance(ids, str)
        check_ids(card, "tokens", ids)
        with panics_told("spelling the tokens"):
            text = card.tokenizer.decode(ids)
        say(resp, as_page(told_text(text)))
