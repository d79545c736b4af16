"""Tokens and their exact bytes: streamed pieces and whole texts must be the same.

Thread: any
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from lattice_cli.errors import BrokenWeights
from lattice_cli.model.tokenizer import FastTokenizer, Spelling
from tests.samples import examples
from tests.tiny import CONTROL_TOKENS, IM_END, THINK, VOCABULARY, byte_alphabet, tiny_tokenizer, write_tiny_folder

LIBRARY = tiny_tokenizer()
TINY = FastTokenizer(tiny_tokenizer())
TEXTS = st.text() | st.lists(st.sampled_from(["\u00e9", "\U0001f9d1\u200d\U0001f680", " ", "\n", "<think>", "a"])).map(
    "".join
)


def joined(tokenizer: FastTokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", "replace")


@pytest.mark.pure
@given(TEXTS)
@examples(200, sample=60)
def test_the_bytes_of_the_tokens_are_the_text(text: str) -> None:
    ids = TINY.encode(text)
    assert joined(TINY, ids) == TINY.decode(ids) == text


@pytest.mark.pure
@given(st.lists(st.integers(0, VOCABULARY - 1)))
@examples(200, sample=60)
def test_any_ids_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    """Invalid UTF-8 included: a model may stop in the middle of a letter."""
    assert joined(TINY, ids) == TINY.decode(ids) == LIBRARY.decode(ids)


@pytest.mark.pure
def test_control_tokens_in_a_text_are_recognised_and_have_no_bytes() -> None:
    ids = TINY.encode("<|im_start|>a<think>b</think><|im_end|>")
    assert ids == [257, 97, THINK, 98, 260, IM_END]
    assert [TINY.token_bytes(i) for i in ids] == [b"", b"a", b"<think>", b"b", b"</think>", b""]
    assert TINY.decode(ids) == "a<think>b</think>"


@pytest.mark.pure
def test_reasoning_markers_keep_their_text_even_where_they_are_special() -> None:
    """Some folders call `<think>` special; without its text the engine could not split on it."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<think>", special=True), AddedToken("</think>", special=True)])
    special = FastTokenizer(tokenizer)
    assert special.token_bytes(THINK) == b"<think>"
    assert special.decode(special.encode("<think>a</think>b<|im_end|>")) == "<think>a</think>b"


@pytest.mark.pure
def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    """Embeddings are often padded, so a model can emit ids that no tokenizer knows."""
    assert [TINY.token_bytes(i) for i in (VOCABULARY, 10**6, -1)] == [b"", b"", b""]
    assert TINY.decode([97, VOCABULARY, 98]) == "ab"
    assert TINY.vocabulary_size == VOCABULARY


@pytest.mark.pure
def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    """Report 7: JSON can hold them, and the library would raise."""
    assert TINY.encode("a\ud83db") == TINY.encode("a\ufffdb")
    assert TINY.encode("\ud83d\ude00") == TINY.encode("\U0001f600")


@pytest.mark.pure
def test_truncation_and_padding_of_a_fine_tune_are_switched_off() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    assert FastTokenizer(tokenizer).encode("hello, world") == list(b"hello, world")


# How vocabularies write bytes.


def sentencepiece(*, letters: str = "", decoder: Any = None) -> tokenizers.Tokenizer:
    """A small BPE vocabulary with ▁ and byte fallback, as Llama 2 has."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "\u2581",
        *"abehlo",
        "he",
        "\u2581he",
        *letters,
    ]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    merges = [("h", "e"), ("\u2581", "he")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoder or decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


@cache
def pieces_of_both() -> tuple[tokenizers.Tokenizer, FastTokenizer]:
    return sentencepiece(), FastTokenizer(sentencepiece())


@pytest.mark.pure
def test_sentencepiece_pieces_and_byte_fallback() -> None:
    tokenizer = FastTokenizer(sentencepiece())
    assert tokenizer.spelling is Spelling.SENTENCEPIECE
    ids = tokenizer.encode("hello he\u00e9</s>")
    assert [tokenizer.token_bytes(i) for i in ids] == [b" he", b"l", b"l", b"o", b" he", b"\xc3", b"\xa9", b""]
    assert tokenizer.decode(ids) == "hello he\u00e9", "the first space is the tokenizer's own"
    assert joined(tokenizer, ids) == " hello he\u00e9"


@pytest.mark.pure
@given(st.text(alphabet="abehlo \u00e9\u65e5\U0001f600", max_size=30))
@examples(100, sample=30)
def test_sentencepiece_texts_decode_as_the_library_decodes_them(text: str) -> None:
    library, ours = pieces_of_both()
    ids = library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids)


@pytest.mark.pure
@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Metaspace(),
    ],
)
def test_a_byte_level_vocabulary_with_a_sentencepiece_decoder_leaks_no_letters(decoder: Any) -> None:
    """Report 6: Devstral's tokenizer made every space come out as `Ġ`."""
    tokenizer = tiny_tokenizer()
    tokenizer.decoder = decoder
    found = FastTokenizer(tokenizer)
    assert found.spelling is Spelling.BYTE_LEVEL
    text = "one two\nthree \u00e9"
    assert found.decode(found.encode(text)) == joined(found, found.encode(text)) == text
    assert not set("\u0120\u010a\u2581") & set(found.decode(list(range(VOCABULARY))))


@pytest.mark.pure
def test_a_sentencepiece_vocabulary_that_holds_the_byte_letters_stays_one() -> None:
    """Gemma's 262,144 pieces hold every letter of Latin Extended-A as a letter."""
    tokenizer = FastTokenizer(sentencepiece(letters="".join(byte_alphabet()) + "\u0120"))
    assert tokenizer.spelling is Spelling.SENTENCEPIECE
    ids = tokenizer.encode("he \u0120")
    assert tokenizer.decode(ids) == "he \u0120"


@pytest.mark.pure
def test_any_other_vocabulary_is_spelled_by_its_decoder() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"hello": 0, "you": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = FastTokenizer(tokenizer)
    assert found.spelling is Spelling.OTHER
    assert [found.token_bytes(i) for i in found.encode("hello you")] == [b"hello", b"you"]


@pytest.mark.pure
def test_an_added_token_outside_the_alphabet_is_spelled_as_it_is() -> None:
    """DeepSeek's `<｜tool▁sep｜>` is no sequence of byte letters."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<\uff5ctool\u2581sep\uff5c>", special=False)])
    found = FastTokenizer(tokenizer)
    assert found.token_bytes(VOCABULARY) == "<\uff5ctool\u2581sep\uff5c>".encode()
    assert found.decode([VOCABULARY, 97]) == tokenizer.decode([VOCABULARY, 97])


# Folders.


@pytest.mark.pure
def test_a_made_up_tokenizer_class_does_not_matter_beside_tokenizer_json(tmp_path: Path) -> None:
    """Report 117: the class is a Python name of another library; the file says all there is to say."""
    folder = write_tiny_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MadeUpTokenizer2000"}))
    assert FastTokenizer.from_folder(folder).encode("a<|im_end|>") == [97, IM_END]


@pytest.mark.pure
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "<html>", '{"version": "1.0", "model": {"type": "Unheard"}}', '{"a": "\ud83d"}']
)
def test_a_broken_tokenizer_json_is_named_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BrokenWeights) as caught:
        FastTokenizer.from_folder(tmp_path)
    assert caught.value.message.startswith(f"`{file}` is no tokenizer we can read: ")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.pure
def test_a_folder_without_a_tokenizer_is_told_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(BrokenWeights) as caught:
        FastTokenizer.from_folder(tmp_path)
    assert caught.value.message == (
        f"`{tmp_path / 'tokenizer.json'}` is missing, and there is no `tokenizer.model` or `vocab.json` either"
    )


@pytest.mark.tiny
def test_vocabulary_and_merges_alone_go_through_transformers(tmp_path: Path) -> None:
    """Older checkpoints bring no tokenizer.json. transformers is loaded for them alone."""
    folder = write_tiny_folder(tmp_path, "qwen2")
    (folder / "tokenizer.json").unlink()
    tokens = [*byte_alphabet(), "th", *CONTROL_TOKENS]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    tokenizer = FastTokenizer.from_folder(folder)
    assert tokenizer.encode("that") == [256, ord("a"), ord("t")]
    assert tokenizer.decode([256, ord("a")]) == "tha"


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("name", "kind"),
    [("tokenizer.model", "LlamaTokenizer"), ("vocab.json", "LlamaTokenizer"), ("vocab.json", "Qwen2Tokenizer")],
)
def test_a_broken_slow_tokenizer_is_named_in_one_sentence(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_tiny_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / name).write_text("nonsense")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(BrokenWeights) as caught:
        FastTokenizer.from_folder(folder)
    assert caught.value.message.startswith(f"`{folder / name}` could not be turned into a tokenizer")
    assert "\n" not in caught.value.message


# The real one.


@pytest.mark.model
@given(
    st.text(
        st.characters(max_codepoint=0x1FFFF, exclude_characters="<", exclude_categories=("Cs", "Cc"))
        | st.sampled_from("\n\t\r"),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_the_real_vocabulary_gives_texts_back(smollm2_tokenizer: FastTokenizer, text: str) -> None:
    """Up to plane 1: SmolLM2 lacks the letters of some control characters and of bytes 0xF1 and 0xF2."""
    ids = smollm2_tokenizer.encode(text)
    assert joined(smollm2_tokenizer, ids) == smollm2_tokenizer.decode(ids) == text


@pytest.mark.model
@given(st.lists(st.integers(0, 49151), max_size=40))
@settings(max_examples=200, deadline=None)
def test_random_ids_of_the_real_vocabulary(smollm2_tokenizer: FastTokenizer, ids: list[int]) -> None:
    assert joined(smollm2_tokenizer, ids) == smollm2_tokenizer.decode(ids)


@pytest.mark.pure
@pytest.mark.parametrize(("single", "opening"), [("$A", ()), ("<|im_start|> $A", (257,)), ("$A <|im_end|>", ())])
def test_what_a_tokenizer_puts_before_a_text_is_known(single: str, opening: tuple[int, ...]) -> None:
    """A raw prompt begins as the model saw texts begin; what would end one is left out."""
    tokenizer = tiny_tokenizer()
    special = [(name, tokenizer.token_to_id(name)) for name in ("<|im_start|>", "<|im_end|>")]
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
    assert FastTokenizer(tokenizer).opening_ids() == opening
