"""Templates from strangers: they end, they do not fill memory, and they do not get out.

Thread: any
"""

from __future__ import annotations

import time

import pytest

from lattice_cli.errors import InvalidMessages
from lattice_cli.prompt import bounds, sandbox
from lattice_cli.prompt.sandbox import TEMPLATE_ERRORS, TemplateRunaway, render
from tests.prompt.test_template import rendered_by

pytestmark = pytest.mark.pure

GROW = "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(64) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}" + 3 * "{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) if loop.depth < 9 }}{% endfor %}",
        GROW + "{% set ns.l = ns.l + ns.l %}{% for x in ns.l %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_without_end_is_stopped_by_its_processor_time(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "RENDER_CPU_S", 0.02)
    begun = time.thread_time()
    with pytest.raises(TemplateRunaway):
        render(template, {})
    assert time.thread_time() - begun < 10


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'aaaaaaaaaa' * 1000 }}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endmacro %}{{ m() }}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ [1] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.zfill(999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ [1] | batch(999999999, 'x') | list }}",
        GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        GROW + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        GROW + "{% set ns.x = ns.x | replace('a', ns.x) | replace('b', ns.x) %}{% endfor %}",
        GROW + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        GROW + "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
        GROW + "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    ],
)
def test_a_template_that_grows_without_end_is_stopped(template: str) -> None:
    with pytest.raises(TemplateRunaway):
        render(template, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% macro m() %}{% for i in range(9999) %}{{ c | upper }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% for i in range(9999) %}{{ c | upper }}{% endfor %}"
        "{% endcall %}",
        "{% set x %}{% for i in range(9999) %}{{ c | upper }}{% endfor %}{% endset %}",
        "{% filter lower %}{% for i in range(9999) %}{{ c | upper }}{% endfor %}{% endfilter %}",
        "{% set x %}{% for i in range(9999) recursive %}{{ c | upper }}{% endfor %}{% endset %}",
    ],
)
def test_what_is_printed_aside_is_bounded_as_it_grows(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A macro's or a block's text was measured when it was whole: five seconds of printing had filled 4 GB by then."""
    monkeypatch.setattr(bounds, "MOST_CHARACTERS", 100_000)
    made: list[str] = []

    class Content(str):
        def upper(self) -> str:
            made.append("X" * 1000)
            return made[-1]

    with pytest.raises(TemplateRunaway, match="a text without end"):
        render(template, {"c": Content("x")})
    assert len(made) == 101


@pytest.mark.parametrize(
    "template", ["{{ lipsum(n=10**6) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ ''.__class__.mro() }}"]
)
def test_other_ways_out_are_errors_too(template: str) -> None:
    with pytest.raises(TEMPLATE_ERRORS):
        render(template, {})


def test_a_runaway_is_a_bad_request_that_says_so() -> None:
    with pytest.raises(InvalidMessages, match="makes a text without end") as refused:
        rendered_by("{{ 'a' * 10**10 }}")
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_what_real_templates_do_is_as_in_jinja() -> None:
    text = render(
        "{% for i in [1, 2] %}\n  {{ i ~ 'x' ~ none }}\n{% endfor %}{{ 'a%s' % 'b' }}{{ '%.2f' | format(2) }}"
        "{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('q') }}{{ ['a', 'b'] | join(', ') }}{{ 'aXb'.split('X')[-1] }}"
        "{{ missing ~ 'm' }}{{ '{}!'.format('f') }}{{ 'a-b' | replace('-', '+') }}{{ 7 * 6 }}{{ 2 ** 10 }}{{ 7 % 4 }}",
        {},
    )
    assert text == "  1xNone\n  2xNone\nab2.00[q]a, bbmf!a+b4210243"


def test_tojson_is_hugging_faces() -> None:
    value = {"b": "é<", "a": [1, None]}
    assert render("{{ v | tojson }}", {"v": value}) == '{"b": "é<", "a": [1, null]}'
    assert render("{{ v | tojson(ensure_ascii=true) }}", {"v": value}) == '{"b": "\\u00e9<", "a": [1, null]}'
    told = render("{{ v | tojson(separators=(',', ':'), sort_keys=true) }}", {"v": value})
    assert told == '{"a":[1,null],"b":"é<"}'
