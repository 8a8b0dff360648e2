"""Rules by which byte-level BPE splits text into pieces, which are merged separately, and their names in GGUF files.

The names (`tokenizer.ggml.pre`) are those of llama.cpp, except names of tokenizers that are not byte-level BPE (gemma4,
sarvam-moe, whitespace) and of some models that are not supported (afmoe, chameleon, exaone-moe, jais-2). The rules of a
model family take precedence: it may know more of its tokenizers, such as their normalisation.

Sources: the tokenizers of GPT-2, GPT-4 (`cl100k_base`) and GPT-4o (`o200k_base`), and tokenizer.json of the models that
are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DIGITS_THEN_GPT_2",
    "GGUF_SPLITS",
    "GPT_2",
    "GPT_4",
    "GPT_4O",
    "GPT_4_SINGLE_DIGITS",
    "LOWER",
    "SplitRule",
    "TEKKEN",
    "UPPER",
]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is split into the pieces that are merged: a regular expression, after NFC normalisation if `is_nfc`.

    Several expressions are applied one after the other, each to the pieces that the one before it made. With
    `ignore_merges`, a piece that is in the vocabulary is not merged. `adds_bos` is the default, for files that do not
    say whether texts begin with the BOS token.
    """

    pattern: str | tuple[str, ...]
    is_nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

DIGITS_THEN_GPT_2 = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""Single digits are split off first, then GPT-2's expression splits the text between them (StarCoder, SmolLM)."""

_GPT_4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4 = _GPT_4 % r"\p{N}{1,3}"
"""GPT-4's expression: digits are split into pieces of up to three."""

GPT_4_SINGLE_DIGITS = _GPT_4 % r"\p{N}"
"""GPT-4's expression with single digits (Qwen 2, StableLM 2)."""

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OPTIONAL_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{_OPTIONAL_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{_OPTIONAL_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""GPT-4o's expression: words are split between lower and upper case."""

TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Mistral's: words are split between lower and upper case, and every digit is a piece."""

# Letters with upper and lower case, as the tokenizer of DeepSeek LLM and V2 lists them.
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CHINESE_OR_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_LLM = SplitRule(
    (
        r"[\r\n]",
        rf"\s?[{_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CHINESE,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = SplitRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}"))
_WORDS_OF_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_SPACES = r"|\s+(?!\S)|\s+"
_DEEPSEEK_V3 = SplitRule((r"\p{N}{1,3}", _CHINESE_OR_KANA, _WORDS_OF_V3 + r"[\r\n]*|\s*[\r\n]+" + _SPACES))
_SPARK = SplitRule((r"\p{N}{1,3}", _CHINESE_OR_KANA, _WORDS_OF_V3 + r"|[\r\n]" + _SPACES, r"\p{N}"))
# Kimi's: words are split between lower and upper case, and Chinese text from other letters.
_UPPER, _LOWER = (rf"[{letters[1:-1]}&&[^\p{{Han}}]]" for letters in (UPPER, LOWER))
_KIMI = SplitRule(
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_OPTIONAL_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_OPTIONAL_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_YOUTU = SplitRule(
    (
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        f"|[\u3105-\u312f]+|{_CHINESE_OR_KANA}",
        GPT_4O.replace(r"\p{N}{1,3}", r"\p{N}"),
    ),
    ignore_merges=True,
)
_LLAMA_3 = SplitRule(GPT_4, ignore_merges=True, adds_bos=True)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_GGUF_NAMES: Mapping[SplitRule, str] = {
    _LLAMA_3: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano smollm3",
    SplitRule(GPT_4): "glm4 chatglm-bpe dbrx smaug-bpe",
    SplitRule(GPT_4_SINGLE_DIGITS, is_nfc=True): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez",
    SplitRule(GPT_4_SINGLE_DIGITS): "stablelm2 hunyuan solar-open grok-2",
    SplitRule((r"[^\n]+|[\n]+", GPT_4_SINGLE_DIGITS)): "laguna",
    SplitRule(GPT_4_SINGLE_DIGITS.removeprefix(_CONTRACTIONS)): "ufakzeka",
    SplitRule(
        _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        is_nfc=True,
    ): "qwen35",
    SplitRule(GPT_4O): "gpt-4o llama4 kanana2 talkie minimax-m2",
    SplitRule(GPT_4O, ignore_merges=True): "granite-embed-multi-97m",
    SplitRule((r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O)): "tiny_aya cohere2moe",
    SplitRule(TEKKEN, ignore_merges=True, adds_bos=True): "tekken",
    SplitRule(GPT_2): (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum exaone4 jais trillion "
        "granite-docling jina-v1-en jina-v2-code roberta-bpe"
    ),
    SplitRule(GPT_2, is_nfc=True): "mpt olmo modern-bert",
    SplitRule(DIGITS_THEN_GPT_2): "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    SplitRule(DIGITS_THEN_GPT_2, is_nfc=True): "command-r",
    SplitRule((r"[\p{P}$+<=>^~|`]+", GPT_2, "[0-9][0-9][0-9]")): "falcon",
    SplitRule((r"[\p{P}$+<=>^~|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    SplitRule(_BLOOM): "bloom poro-chat gpt3-finnish",
    SplitRule((_BLOOM, r"\p{N}")): "viking",
    SplitRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    SplitRule(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+"
    ): "bailingmoe bailingmoe2 llada-moe",
    SplitRule(
        _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "seed-coder",
    SplitRule((r"\p{N}{1,3}", GPT_4.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True): "minicpm5",
    _DEEPSEEK_LLM: "deepseek-llm",
    _DEEPSEEK_CODER: "deepseek-coder",
    _DEEPSEEK_V3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _SPARK: "spark2_5",
    _KIMI: "kimi-k2",
    _YOUTU: "youtu",
}

GGUF_SPLITS: Mapping[str, SplitRule] = {name: rule for rule, names in _GGUF_NAMES.items() for name in names.split()}
"""The split rule of each name of `tokenizer.ggml.pre`."""
