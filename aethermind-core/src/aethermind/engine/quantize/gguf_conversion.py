"""Plans the GGUF file of a model. For a Hugging Face directory, a package's `GgufFamily` maps names and metadata.

The metadata are checked before weights are written: a reader has to find the configuration of the directory in them,
and a tokenizer that splits texts as the directory's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf_tensors import ROPE_FACTORS, GgufNames, gguf_name, inverse_order
from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.checkpoint.remapped import pair_order
from aethermind.engine.quantize.gguf_model import GgufModel, GgufTensor, MetadataEntry, requantised_file
from aethermind.engine.quantize.matrices import dense_values, find_matrices
from aethermind.errors import ConfigError, InvalidArgumentError, TokenizerError
from aethermind.first_party import pip_install_command
from aethermind.model.gguf_source import GgufSource
from aethermind.model.rope import RopeConfig, inverse_frequencies
from aethermind.text.chat_templates import DEFAULT_TEMPLATE
from aethermind.text.gguf_tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, gguf_tokenizer

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.quantize.gguf_model import GgufFormat
    from aethermind.model.config import DecoderConfig
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.plugins.registry import Registry
    from aethermind.runtime import Runtime
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["plan_gguf"]

Array = npt.NDArray[Any]

_TEXTS = (
    "Hello, World! It's 2024 -- they'll   have\tpaid 1,234,567.89 EUR.\n\n  Indented\r\nlines…",
    "naïve café façade: Ελληνικά, русский, 日本語のテキスト, 한국어, العربية, हिन्दी 🙂👩‍👩‍👧",
    "def area(radius):\n    return 3.14159 * radius ** 2  # CamelCase snake_case HTTPServer\n",
    "x=1;y=22;z=333;w=4444 ___ --- ''' \"\"\" <|no token|> [[]] {{}} e\u0301 ﬁ ½",
)
"""Texts that known pre-tokenizers split differently."""
_ROLES = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}


def plan_gguf(compiled: CompiledModel, runtime: Runtime, format: GgufFormat) -> GgufModel:
    """Plan the quantisation of a compiled model to a GGUF file, without reading weights.

    InvalidArgumentError without the gguf library, and for a model that cannot be written.
    """
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(
            f"GGUF is written with the gguf library. Install it with `{pip_install_command('aethermind-core[gguf]')}`."
        ) from None
    if isinstance(compiled.source, GgufSource):
        return requantised_file(compiled, compiled.source, format)
    return _convert_directory(compiled, runtime, format)


def _convert_directory(compiled: CompiledModel, runtime: Runtime, format: GgufFormat) -> GgufModel:
    """Plan the file of a model directory; InvalidArgumentError says why there can be none."""
    name, family = _family_of(compiled, runtime.gguf_families)
    stored, tokenizer = compiled.source.weights(), compiled.source.tokenizer()
    config = compiled.model.config
    matrices = find_matrices(compiled, stored)
    names = GgufNames(family.modules, family.outside, family.layers)
    tensors = []
    for own_name in stored.names:
        if own_name.endswith(".rotary_emb.inv_freq") or (own_name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        gguf_own = gguf_name(own_name, names)
        if gguf_own is None:
            raise InvalidArgumentError(f"{own_name} has no name in GGUF: this model cannot be written as .gguf.")
        shape = stored.info(own_name).shape
        is_table = own_name in matrices.tables
        is_output = own_name in matrices.heads or (is_table and not matrices.heads)
        parameter = {**matrices.linear, **matrices.heads}.get(own_name, own_name if is_table else None)
        type_name = "F32"
        if parameter is not None:
            type_name = format.type_of(gguf_own, shape[-1], config.num_hidden_layers, is_output=is_output)
        order = _row_order(gguf_own, family, shape[0], config.head_dim)
        tensors.append(GgufTensor(gguf_own, shape, type_name, partial(_values, stored, own_name, order), parameter))
    if config.rope.kind == "llama3":
        factors = _rope_factors(config.rope)
        tensors.insert(0, GgufTensor(ROPE_FACTORS, factors.shape, "F32", lambda: factors))
    metadata = [*_configuration(name, family, compiled), *_tokenizer(tokenizer, family, config.vocab_size)]

    def check(path: Path) -> None:
        raw = GgufSource(path, runtime.gguf_families).config()
        _check_configuration(config, runtime.architectures.create_model(compiled.architecture, raw).config)

    return GgufModel(name, metadata, tensors, format, check, num_settings=int(config.rope.kind == "llama3"))


def _check_configuration(expected: DecoderConfig, found: DecoderConfig) -> None:
    """InvalidArgumentError if the configuration that a file is read with is not that of the directory."""
    left, right = (
        replace(one, dtype=expected.dtype, eos_token_ids=(), rope=expected.rope) for one in (expected, found)
    )
    ropes = [inverse_frequencies(one.rope, expected.max_position_embeddings) for one in (expected, found)]
    is_same_rope = np.allclose(ropes[0][0], ropes[1][0], rtol=1e-5) and np.isclose(ropes[0][1], ropes[1][1], rtol=1e-5)
    eps = np.float32(left.rms_norm_eps) == np.float32(right.rms_norm_eps)
    if replace(left, rms_norm_eps=0.0) != replace(right, rms_norm_eps=0.0) or not is_same_rope or not eps:
        raise InvalidArgumentError(
            "The configuration of this model has settings that a GGUF file would not have, such as windows or "
            "scaled positions. Choose a format of compressed-tensors."
        )


def _family_of(compiled: CompiledModel, families: Registry[GgufFamily]) -> tuple[str, GgufFamily]:
    """Return the GGUF name of a model's architecture, and its family; InvalidArgumentError if it cannot be written."""
    found = ((name, families.get(name)) for name in families.names())
    writable = {family.architecture: (name, family) for name, family in found if family.is_writable}
    if compiled.architecture not in writable:
        raise InvalidArgumentError(
            f"Directories of {compiled.architecture} are not written as GGUF; those of {', '.join(sorted(writable))} "
            "are. Take a .gguf file of the model in F16 or BF16, or choose a format of compressed-tensors."
        )
    return writable[compiled.architecture]


def _values(stored: StoredTensors, name: str, order: tuple[int, ...] | None) -> Any:
    values = dense_values(dequantized(stored, np.float32).array(name))
    return values if order is None else values[np.asarray(order, np.int64)]


def _row_order(name: str, family: GgufFamily, num_rows: int, head_dim: int) -> tuple[int, ...] | None:
    """Return the order of a projection's rows in the file, with rotated pairs adjacent; None if it is the same."""
    module = name.rsplit(".", 2)[-2]
    if module not in family.interleaved:
        return None
    return inverse_order(pair_order(num_rows // head_dim, head_dim))


def _rope_factors(rope: RopeConfig) -> Array:
    """Return the factors by which llama3 scaling divides the rotary frequencies, float32 [head_dim / 2]."""
    plain, _ = inverse_frequencies(replace(rope, kind="default"), 0)
    scaled, _ = inverse_frequencies(rope, 0)
    divisors: Array = (plain / scaled).astype(np.float32)
    return divisors


def _configuration(name: str, family: GgufFamily, compiled: CompiledModel) -> Iterator[MetadataEntry]:
    """Yield the metadata of the configuration. `_check_configuration` checks what is read from them."""
    from gguf import GGUFValueType as Type

    config, raw = compiled.model.config, compiled.source.config()
    numbers: dict[str, int | float] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.rope.head_dim,
        "rope.freq_base": float(config.rope.theta),
    }
    for field, key in family.metadata.items():
        if isinstance(raw.get(field), int | float):
            numbers[key] = raw[field]
    rope = config.rope
    if rope.kind in ("linear", "yarn"):
        yield MetadataEntry(f"{name}.rope.scaling.type", rope.kind, Type.STRING)
        numbers["rope.scaling.factor"] = float(rope.factor)
        if rope.kind == "yarn":
            numbers["rope.scaling.original_context_length"] = rope.original_max_position_embeddings
    elif rope.kind not in ("default", "llama3"):
        raise InvalidArgumentError(f"Rotary scaling of the kind {rope.kind} is not written as GGUF.")
    yield MetadataEntry("general.name", compiled.source.path.resolve().name, Type.STRING)
    for key, value in numbers.items():
        yield MetadataEntry(f"{name}.{key}", value, Type.FLOAT32 if isinstance(value, float) else Type.UINT32)


def _tokenizer(tokenizer: Tokenizer, family: GgufFamily, num_rows: int) -> Iterator[MetadataEntry]:
    """Yield the metadata of the tokenizer; InvalidArgumentError unless it is byte-level BPE with a known `pre`."""
    from gguf import GGUFValueType as Type

    state = json.loads(tokenizer.as_json())
    model = state["model"]
    if model.get("type") != "BPE" or not tokenizer.is_byte_level:
        raise InvalidArgumentError(
            "The tokenizer of this model is not byte-level BPE, which alone is written as GGUF. Take a .gguf file of "
            "the model in F16 or BF16, or choose a format of compressed-tensors."
        )
    ids = model["vocab"] | {added["content"]: added["id"] for added in state["added_tokens"]}
    tokens = [f"[PAD{token_id}]" for token_id in range(max(num_rows, 1 + max(ids.values())))]
    types = [UNUSED] * len(tokens)
    for token, token_id in ids.items():
        tokens[token_id], types[token_id] = token, NORMAL
    for added in state["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    special = {name: tokenizer.special_tokens.get(role) for name, role in _ROLES.items()}
    special_ids = {name: ids[token] for name, token in special.items() if token in ids}
    text = tokenizer.encode("a", add_special_tokens=True)
    around = {"bos": text[:1] == [special_ids.get("bos")], "eos": text[-1:] == [special_ids.get("eos")]}
    prefix = "tokenizer.ggml."
    found: dict[str, Any] = {
        f"{prefix}model": "gpt2",
        f"{prefix}tokens": tokens,
        f"{prefix}token_type": types,
        f"{prefix}merges": merges,
        **{f"{prefix}{name}_token_id": token_id for name, token_id in special_ids.items()},
        **{f"{prefix}add_{name}_token": is_added for name, is_added in around.items()},
    }
    found[f"{prefix}pre"] = _split_name(found, tokenizer, family)
    for name, template in tokenizer.chat_templates.items():
        found["tokenizer.chat_template" if name == DEFAULT_TEMPLATE else f"tokenizer.chat_template.{name}"] = template
    for key, value in found.items():
        if isinstance(value, list):
            yield MetadataEntry(key, value, Type.ARRAY, Type.STRING if isinstance(value[0], str) else Type.INT32)
        else:
            yield MetadataEntry(key, value, {str: Type.STRING, bool: Type.BOOL, int: Type.UINT32}[type(value)])


def _split_name(metadata: Mapping[str, Any], tokenizer: Tokenizer, family: GgufFamily) -> str:
    """Return the name of the pre-tokenizer (`tokenizer.ggml.pre`) with which these metadata encode as the tokenizer."""
    expected = [tokenizer.encode(text, add_special_tokens=True) for text in _TEXTS]
    for name in family.splits:
        try:
            named = {**metadata, "tokenizer.ggml.pre": name}
            other = gguf_tokenizer(named, family.splits, Path("its GGUF file"), is_cached=False)
        except (TokenizerError, ConfigError):
            continue
        if [other.encode(text, add_special_tokens=True) for text in _TEXTS] == expected:
            return name
    raise InvalidArgumentError(
        "The tokenizer of this model splits texts in another way than the files of its family. Choose a format of "
        "compressed-tensors."
    )
