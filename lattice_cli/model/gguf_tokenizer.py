"""A GGUF file's metadata -> tokenizer, end ids and template.

Knows the metadata keys and the four pre-tokenizers below; knows no tensors.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.gguf_header import GgufHeader, Value
from lattice_cli.model.tokenizer import FastTokenizer

Metadata = Mapping[str, Value]

# Token types of llama.cpp (llama.h, llama_token_type).
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    return pre_tokenizers.Sequence([Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
}


def build_tokenizer(header: GgufHeader) -> FastTokenizer:
    """Rebuild the tokenizer a file's metadata describes. Cost: 0.1-0.5 s.

    Raises: UnknownFormat for a tokenizer other than byte-level BPE with a pre-tokenizer we know,
    BrokenWeights for metadata that is missing or inconsistent.
    """
    kind, pre = str(header.metadata.get("tokenizer.ggml.model", "")), str(header.metadata.get("tokenizer.ggml.pre", ""))
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        named = f"pre-tokenizer `{pre}`" if kind == "gpt2" else f"tokenizer `{kind or 'none'}`"
        raise UnknownFormat(
            f"`{header.path}` has {named}, and we rebuild only {', '.join(_PRE_TOKENIZERS)}",
            hint="name a folder with the model's tokenizer.json with `--tokenizer-dir`",
        )
    tokens = [str(token) for token in _array(header, "tokenizer.ggml.tokens")]
    kinds = [int(kind) for kind in _array(header, "tokenizer.ggml.token_type")]
    pairs = [tuple(str(merge).split(" ", 1)) for merge in _array(header, "tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(kinds) != len(tokens) or len(merges) != len(pairs):
        raise BrokenWeights(f"`{header.path}` is inconsistent: its token types or merges do not fit its tokens")
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # UPSTREAM: tokenizers (0.23) raises Exception itself
        if type(error) is not Exception:
            raise
        raise BrokenWeights(f"`{header.path}` is inconsistent: {error}") from error
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return FastTokenizer(tokenizer)


def _array(header: GgufHeader, key: str) -> list[int | float | bool | str]:
    value = header.metadata.get(key)
    if not isinstance(value, list):
        raise BrokenWeights(f"`{header.path}` has no `{key}`")
    return value


def gguf_end_ids(metadata: Metadata) -> frozenset[int]:
    """The ids the metadata calls an end of text, turn or message."""
    names = ("eos", "eot", "eom")
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
    return frozenset(i for i in ids if isinstance(i, int))


def gguf_token(header: GgufHeader, name: str) -> str:
    """The text of the `bos` or `eos` token; empty where there is none."""
    token_id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token_id, int) and isinstance(tokens, list) and 0 <= token_id < len(tokens):
        return str(tokens[token_id])
    return ""


def gguf_template(metadata: Metadata, name: str = "") -> str | None:
    """The chat template's jinja source, or that of the `name` it has beside it, if the file has one."""
    template = metadata.get(f"tokenizer.chat_template.{name}" if name else "tokenizer.chat_template")
    return template if isinstance(template, str) else None
