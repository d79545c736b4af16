"""Grammars over every kind of vocabulary: a walk that takes any allowed token gives valid JSON, and a token that is
not allowed is an error.

Thread: any
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.guided import RowGuide
from lattice_cli.engine.scripted import Reply, Script, ScriptTokenizer
from lattice_cli.job import Constraint
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.card import Tokenizer as Spelled
from lattice_cli.model.tokenizer import FastTokenizer, Spelling
from tests.samples import examples

pytestmark = pytest.mark.pure

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "größe": {"enum": ["klein", "大", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "größe"],
    "additionalProperties": False,
}
CONSTRAINT = Constraint("json_schema", json.dumps(SCHEMA))


def card(tokenizer: Spelled, *ends: int) -> ModelCard:
    return ModelCard("m", ModelFormat("hf", "m", "none", 512, 0), tokenizer, 512, frozenset(ends))


def byte_level() -> ModelCard:
    tokenizer = FastTokenizer.from_folder(FIXTURES / "llama")
    assert tokenizer.spelling is Spelling.BYTE_LEVEL
    return card(tokenizer, *tokenizer.special_ids(("<|im_end|>", "<|endoftext|>")))


def sentencepiece() -> ModelCard:
    """With pieces for spaces, bytes as a way out, and a control token that is the end."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁{", '{"', '":', "▁true", "na", "me", '"', "{", "}", '▁"', "größe", "大", ",", "▁▁▁▁", "]"]
    model = models.BPE(
        {piece: number for number, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    fast = FastTokenizer(tokenizer)
    assert fast.spelling is Spelling.SENTENCEPIECE
    return card(fast, 2)


def scripted() -> ModelCard:
    tokenizer = ScriptTokenizer(Script(replies=(Reply(tokens=('{"name"', ": ", '": "', "}")),)))
    return card(tokenizer, tokenizer.end_id)


CARDS = {make.__name__: make() for make in (byte_level, sentencepiece, scripted)}


@pytest.mark.parametrize("kind", CARDS)
@examples(40, sample=12)
@given(chance=st.randoms(use_true_random=False))
def test_a_walk_along_what_is_allowed_gives_valid_json(kind: str, chance: random.Random) -> None:
    model = CARDS[kind]
    guide = RowGuide(compile_guide(model, CONSTRAINT))
    said: list[int] = []
    while (mask := guide.allowed()) is not None:
        allowed = [int(token) for token in mask.nonzero()[0]]
        assert allowed and not any(model.tokenizer.token_bytes(token) == b"" for token in set(allowed) - model.end_ids)
        # White space alone would make the walk long.
        visible = [token for token in allowed if model.tokenizer.token_bytes(token).strip()]
        said.append(chance.choice(visible or allowed))
        guide.advance(said[-1])
        assert guide.error is None
        assert len(said) < 400
    assert guide.complete
    value = json.loads(b"".join(map(model.tokenizer.token_bytes, said)))
    jsonschema.validate(value, SCHEMA)


@pytest.mark.parametrize("kind", CARDS)
@examples(20, sample=8)
@given(chance=st.randoms(use_true_random=False))
def test_a_token_that_is_not_allowed_is_an_error(kind: str, chance: random.Random) -> None:
    model = CARDS[kind]
    compiled = compile_guide(model, CONSTRAINT)
    said: list[int] = []
    for _ in range(chance.randrange(12)):
        mask = RowGuide(compiled, said=said).allowed()
        if mask is None:
            return
        said.append(chance.choice([int(token) for token in mask.nonzero()[0]]))
    guide = RowGuide(compiled, said=said)
    mask = guide.allowed()
    if mask is not None:
        guide.advance(chance.choice([token for token in range(len(mask)) if not mask[token]]))
        assert guide.error is not None
