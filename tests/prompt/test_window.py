"""The room for an answer, with both numbers in every refusal.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.errors import PromptTooLong
from lattice_cli.prompt.window import fits

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("prompt", "asked", "default", "expected"),
    [
        (10, None, None, 89),
        (10, None, 50, 50),
        (10, None, 500, 89),
        (10, 89, None, 89),
        (98, None, None, 1),
        (98, 1, None, 1),
    ],
)
def test_what_fits_is_granted(prompt: int, asked: int | None, default: int | None, expected: int) -> None:
    """Report 90: with no max_tokens the answer gets what is left; a default is cut to it, silently."""
    assert fits(100, prompt, asked, default) == expected


@pytest.mark.parametrize("prompt", [99, 100, 5000])
def test_a_prompt_without_room_names_both_counts(prompt: int) -> None:
    """Report 95: users want the token counts in the error."""
    with pytest.raises(PromptTooLong) as refused:
        fits(100, prompt, None)
    assert f"{prompt} tokens" in refused.value.message
    assert "100 tokens" in refused.value.message
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


def test_an_explicit_limit_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(PromptTooLong) as refused:
        fits(100, 10, 90)
    assert refused.value.param == "max_tokens"
    assert "at most 89" in (refused.value.hint or "")
