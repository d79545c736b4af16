"""What a tokenizer, a template or a grammar may do that costs one request: its sentence, and the next one is answered.

Running out of memory is in tests/engine/test_memory_cost.py.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lattice_cli.engine.guide import CompiledGuide, compile_guide
from lattice_cli.engine.guided import RowGuide
from lattice_cli.engine.open import OpenEngine, open_engine
from lattice_cli.job import Constraint
from lattice_cli.model.card import ModelSource
from lattice_cli.settings import EngineSettings, read_home
from tests.engine.test_guide import card
from tests.serve.stage import PATH, REPLIES, Stage, body, eventually, stage, write_script


class PanicException(BaseException):
    """As pyo3 raises one, when Rust code panics: no Exception."""


class Touchy:
    """A tokenizer that raises at one word."""

    def __init__(self, tokenizer: Any, fault: BaseException) -> None:
        self._tokenizer = tokenizer
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        if "poison" in text:
            raise self._fault
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        if 7 in ids:
            raise self._fault
        text: str = self._tokenizer.decode(ids)
        return text


def opener_with(tmp_path: Any, change: Callable[[Any], Any], **script: Any) -> Callable[[], OpenEngine]:
    source = ModelSource("echo", write_script(tmp_path, REPLIES, **script), "script")

    def opener() -> OpenEngine:
        opened = open_engine(source, read_home(), EngineSettings(max_rows=2, max_pending=2))
        return replace(opened, card=change(opened.card))

    return opener


def answers(house: Stage) -> None:
    with house.client() as client:
        said = client.post(PATH, json=body()).json()["choices"][0]["message"]["content"]
        assert said == "hello world"
        assert "\nlattice_inflight_requests 1.0\n" in client.get("/metrics").text
    eventually(house.worker.idle)


FAULTS = [
    RuntimeError("no"),
    PanicException("slice index out of range"),
    MemoryError(),
    RecursionError(),
    KeyError("x"),
]


@pytest.mark.wire
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_tokenizer_that_raises_costs_one_request(tmp_path: Any, fault: BaseException) -> None:
    opener = opener_with(tmp_path, lambda one: replace(one, tokenizer=Touchy(one.tokenizer, fault)))
    with stage(opener=opener) as house, house.client() as client:
        for path, said in (
            (PATH, body("poison")),
            (PATH, body("poison", stream=True)),
            ("/v1/completions", {"prompt": "poison"}),
            ("/tokenize", {"content": "poison"}),
            ("/detokenize", {"tokens": [7]}),
        ):
            answer = client.post(path, json=said)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error"), path
            assert "slice index" not in answer.text and "Exception" not in answer.text
            answers(house)


@pytest.mark.wire
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[1].content }}",  # a history of one
        "{{ raise_exception('roles must alternate') }}",
        "{% for m in messages %}{{ m.content + 1 }}{% endfor %}",
        "{{ messages | first | attr('x') | length }}",
        "{% for a in range(99999999) %}{% for b in range(99999999) %}x{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 1 / 0 }}",
        "{% include 'other' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_raises_on_odd_history_costs_one_request(tmp_path: Any, template: str) -> None:
    odd = "{% if messages[0].content == 'poison' %}" + template + "{% else %}hi{% endif %}"
    with stage(opener=opener_with(tmp_path, lambda one: one, chat_template=odd)) as house, house.client() as client:
        answer = client.post(PATH, json=body("poison"))
        assert answer.status_code in (200, 400)
        assert answer.status_code == 200 or answer.json()["error"]["code"] in ("invalid_messages", "invalid_request")
        answers(house)


class Trap:
    """A matcher that panics at its n-th use."""

    def __init__(self, matcher: Any, uses: int) -> None:
        self._matcher = matcher
        self._uses = uses

    def deep_copy(self) -> Trap:
        return Trap(self._matcher.deep_copy(), self._uses)

    def __getattr__(self, name: str) -> Any:
        self._uses -= 1
        if self._uses < 0:
            raise PanicException("index out of bounds")
        return getattr(self._matcher, name)


@pytest.mark.pure
@pytest.mark.parametrize("uses", range(8))
def test_a_grammar_that_traps_costs_its_row(uses: int) -> None:
    """Wherever it happens, the row has an error that stays, and nothing is raised into the thread of all rows."""
    compiled = compile_guide(card(), Constraint("regex", "abc"))
    row = RowGuide(CompiledGuide(compiled.vocabulary, compiled.constraint, Trap(compiled._first, uses)))
    for byte in b"abc":
        row.allowed()
        row.advance(byte)
        row.allowed()
    assert row.error == "its grammar failed"
    assert row.allowed() is None


@pytest.mark.pure
def test_only_a_panic_is_taken_for_one() -> None:
    compiled = compile_guide(card(), Constraint("regex", "abc"))

    class Stop(Trap):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

        def deep_copy(self) -> Trap:
            return self

    row = RowGuide(CompiledGuide(compiled.vocabulary, compiled.constraint, Stop(compiled._first, 0)))
    with pytest.raises(KeyboardInterrupt):
        row.allowed()
