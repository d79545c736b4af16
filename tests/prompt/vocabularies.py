"""Small tokenizers of the kinds in use, trained on a few sentences: each has control tokens as its models do.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and then it thinks about a tool that it may call.",
    "user system assistant tool name arguments content Paris Oslo weather 1234 3.14 don't we'll it's",
    'if (a < b) { return "x|y"; } // <b>bold</b> </p> \n\n\t- item one\n- item two\n  indented  twice',
    "Größe, naïve, 日本語, привет, emoji 🙂 and U+2028 and a\u0301.",
) * 8
_SPLIT = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def with_control(tokenizer: Tokenizer, *, normalized: bool = False) -> Tokenizer:
    for text in CONTROL:
        token = AddedToken(text, special=text.startswith("<|"), normalized=normalized)
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    return tokenizer


def gpt2() -> Tokenizer:
    """Byte-level BPE, as GPT-2, SmolLM2 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return with_control(tokenizer)


def llama3() -> Tokenizer:
    """Llama 3's pieces, whole words looked up before any merging."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_SPLIT, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return with_control(tokenizer)


def sentencepiece() -> Tokenizer:
    """SentencePiece's BPE with bytes to fall back on; a space before the first word only."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return with_control(_with_bytes(tokenizer))


def llama2() -> Tokenizer:
    """The older way: a normalizer puts a space before every piece between two control tokens."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return with_control(_with_bytes(tokenizer))


def unigram() -> Tokenizer:
    """A model that knows control tokens' spellings itself, and a normalizer that makes `<` of `＜`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", *CONTROL]
    _train(tokenizer, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>"))
    return with_control(tokenizer, normalized=True)


def spaces() -> Tokenizer:
    """GPT-NeoX's kind: runs of spaces are added tokens, and no control tokens."""
    tokenizer = gpt2()
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in (8, 4, 2)])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: make for make in (gpt2, llama3, sentencepiece, llama2, unigram, spaces)
}


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer) -> None:
    trainer.show_progress = False
    tokenizer.train_from_iterator(SENTENCES, trainer)


def _with_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The same, trained, with tokens for bytes that are no added ones."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer or _whole()
    _train(trained, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"]))
    told = json.loads(trained.to_str())["model"]
    vocabulary = {**told["vocab"], **{f"<0x{byte:02X}>": len(told["vocab"]) + byte for byte in range(256)}}
    merges = [(left, right) for left, right in told["merges"]]
    tokenizer.model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    return tokenizer


def _whole() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split("\n\n\n", "isolated")
