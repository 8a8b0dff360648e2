"""GGUF files in the true shapes of published models, with random weights written directly in their stored format.

    python -m tests.bench.random_gguf qwen3-30b-a3b --layers 24 q30c.gguf
    python -m tests.bench.compare_peers --peers PEERS --models q30c=q30c.gguf

No checkpoint in a wider format is made first, so that a model of 30B parameters needs the disk space of its 4 bits
Matrices are Q4_0, the output head (of tied models, the embeddings) Q8_0, as `llama-quantize --output-tensor-type q8_0`
makes them; norms, routers and the parameters of recurrences are float32. The names are those of llama.cpp's converter.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Stored
from tokenizers.pre_tokenizers import ByteLevel

__all__ = ["MODELS", "Model", "Tensor", "write"]

_BLOCK = 32
_BLOCK_BYTES = {Stored.Q4_0: 18, Stored.Q8_0: 34}
_DRAWN_BLOCKS = 1 << 20
"""Blocks are drawn up to so many, and repeated: no time depends on which weights are alike."""


@dataclass(frozen=True)
class Tensor:
    """A tensor by its GGUF name, with the shape in NumPy's order (inputs last) and its stored format.

    `value` fills it with one number, for float32 parameters whose range matters.
    """

    name: str
    shape: tuple[int, ...]
    stored: Stored = Stored.Q4_0
    value: float | None = None


@dataclass(frozen=True)
class Model:
    """A published model: `general.architecture`, its number of layers, metadata under its name, and its tensors."""

    architecture: str
    layers: int
    hidden: int
    vocab: int
    inner: int
    metadata: Mapping[str, Any]
    split_rule: str | None = "qwen2"
    """`tokenizer.ggml.pre` of byte-level BPE; None for SentencePiece."""
    is_tied: bool = False
    experts: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    dense_layers: int = 0
    """Leading layers with a dense network, of a mixture."""
    attention: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Matrices of a layer's attention (and recurrence), by name in the layer."""
    vectors: Mapping[str, int | tuple[int, float]] = field(default_factory=dict)
    """Vectors of a layer in float32, by name in the layer: the length, and the value (default: 1)."""

    def tensors(self, layers: int) -> Iterator[Tensor]:
        """All tensors of the first `layers` layers."""
        yield Tensor("token_embd.weight", (self.vocab, self.hidden), Stored.Q8_0 if self.is_tied else Stored.Q4_0)
        yield Tensor("output_norm.weight", (self.hidden,), Stored.F32, 1.0)
        if not self.is_tied:
            yield Tensor("output.weight", (self.vocab, self.hidden), Stored.Q8_0)
        for layer in range(layers):
            for name, shape in self.attention.items():
                is_small = name.startswith("ssm_conv1d")
                yield Tensor(f"blk.{layer}.{name}.weight", shape, Stored.F32 if is_small else Stored.Q4_0, None)
            for name, vector in self.vectors.items():
                length, value = vector if isinstance(vector, tuple) else (vector, 1.0)
                shape = (length, 1) if name in ("ssm_a", "ssm_d") else (length,)
                yield Tensor(f"blk.{layer}.{name}", shape, Stored.F32, value)
            is_dense = layer < self.dense_layers or not self.experts
            yield from self._networks(f"blk.{layer}.", is_dense=is_dense)

    def _networks(self, layer: str, *, is_dense: bool) -> Iterator[Tensor]:
        if is_dense:
            yield from _network(layer + "ffn_{}.weight", (), self.inner, self.hidden)
            return
        yield Tensor(layer + "ffn_gate_inp.weight", (self.experts, self.hidden), Stored.F32)
        yield from _network(layer + "ffn_{}_exps.weight", (self.experts,), self.expert_inner, self.hidden)
        if self.shared_inner:
            yield from _network(layer + "ffn_{}_shexp.weight", (), self.shared_inner, self.hidden)


def _network(name: str, stack: tuple[int, ...], inner: int, hidden: int) -> Iterator[Tensor]:
    for part in ("gate", "up"):
        yield Tensor(name.format(part), (*stack, inner, hidden))
    yield Tensor(name.format("down"), (*stack, hidden, inner))


MODELS: Mapping[str, Model] = {
    "qwen3-30b-a3b": Model(
        *("qwen3moe", 48, 2048, 151_936, 6144),
        {
            "context_length": 40_960,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.freq_base": 1e6,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
        experts=128,
        expert_inner=768,
        attention={
            "attn_q": (4096, 2048),
            "attn_k": (512, 2048),
            "attn_v": (512, 2048),
            "attn_output": (2048, 4096),
        },
        vectors={
            "attn_norm.weight": 2048,
            "ffn_norm.weight": 2048,
            "attn_q_norm.weight": 128,
            "attn_k_norm.weight": 128,
        },
    ),
    "gemma-3-1b": Model(
        *("gemma3", 26, 1152, 262_144, 6912),
        {
            "context_length": 32_768,
            "attention.head_count": 4,
            "attention.head_count_kv": 1,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "rope.freq_base": 1e6,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 512,
        },
        split_rule=None,
        is_tied=True,
        attention={
            "attn_q": (1024, 1152),
            "attn_k": (256, 1152),
            "attn_v": (256, 1152),
            "attn_output": (1152, 1024),
        },
        vectors={
            "attn_norm.weight": 1152,
            "post_attention_norm.weight": 1152,
            "ffn_norm.weight": 1152,
            "post_ffw_norm.weight": 1152,
            "attn_q_norm.weight": 256,
            "attn_k_norm.weight": 256,
        },
    ),
    "deepseek-v2-lite": Model(
        *("deepseek2", 27, 2048, 102_400, 10_944),
        {
            "context_length": 32_768,
            "attention.head_count": 16,
            "attention.head_count_kv": 1,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.kv_lora_rank": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
            "rope.freq_base": 1e4,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "vocab_size": 102_400,
            "leading_dense_block_count": 1,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 1408,
            "expert_weights_scale": 1.0,
            "expert_gating_func": 1,
        },
        split_rule="deepseek-llm",
        experts=64,
        expert_inner=1408,
        shared_inner=2816,
        dense_layers=1,
        attention={
            "attn_q": (3072, 2048),
            "attn_kv_a_mqa": (576, 2048),
            "attn_output": (2048, 2048),
            "attn_k_b": (16, 512, 128),
            "attn_v_b": (16, 128, 512),
        },
        vectors={"attn_norm.weight": 2048, "ffn_norm.weight": 2048, "attn_kv_a_norm.weight": 512},
    ),
    "falcon-h1-0.5b": Model(
        *("falcon-h1", 36, 1024, 32_784, 2048),
        {
            "context_length": 16_384,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "rope.freq_base": 1e11,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": 32_784,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 1536,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 24,
            "ssm.group_count": 1,
        },
        split_rule="falcon-h1",
        attention={
            "attn_q": (512, 1024),
            "attn_k": (128, 1024),
            "attn_v": (128, 1024),
            "attn_output": (1024, 512),
            "ssm_in": (3352, 1024),
            "ssm_out": (1024, 1536),
            "ssm_conv1d": (1792, 4),
        },
        vectors={
            "attn_norm.weight": 1024,
            "ffn_norm": 1024,
            "ssm_conv1d.bias": (1792, 0.01),
            "ssm_dt.bias": (24, -3.0),
            "ssm_a": (24, -4.0),
            "ssm_d": 24,
        },
    ),
}
"""Shapes of the published configs of Qwen/Qwen3-30B-A3B, google/gemma-3-1b-it, deepseek-ai/DeepSeek-V2-Lite and
tiiuae/Falcon-H1-0.5B-Instruct."""


def write(model: Model, path: Path, layers: int, seed: int = 0) -> None:
    """Write the file. Matrices have a standard deviation of about 1 / sqrt(inputs)."""
    writer = gguf.GGUFWriter(path, model.architecture)
    metadata = {"block_count": layers, "embedding_length": model.hidden, "feed_forward_length": model.inner}
    for key, value in {**metadata, **model.metadata}.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{model.architecture}.{key}", value)
    _add_vocabulary(writer, model.vocab, model.split_rule)
    tensors = list(model.tensors(layers))
    for tensor in tensors:
        shape = (*tensor.shape[:-1], _row_bytes(tensor)) if tensor.stored is not Stored.F32 else tensor.shape
        dtype = np.dtype(np.float32 if tensor.stored is Stored.F32 else np.uint8)
        writer.add_tensor_info(
            tensor.name, shape, dtype, prod(shape) * dtype.itemsize, tensor.stored if dtype.itemsize == 1 else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for tensor in tensors:
        writer.write_tensor_data(_data(random, tensor))
    writer.close()


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[-1] // _BLOCK * _BLOCK_BYTES[tensor.stored]


def _data(random: np.random.Generator, tensor: Tensor) -> npt.NDArray[Any]:
    """What is written: float32 numbers, or the bytes of blocks of 32 codes behind a float16 scale."""
    deviation = tensor.shape[-1] ** -0.5
    if tensor.stored is Stored.F32:
        if tensor.value is not None:
            return np.full(tensor.shape, tensor.value, np.float32)
        return random.normal(0.0, deviation, tensor.shape).astype(np.float32)
    count, width = prod(tensor.shape) // _BLOCK, _BLOCK_BYTES[tensor.stored]
    drawn = random.integers(0, 256, (min(count, _DRAWN_BLOCKS), width), np.uint8)
    # Codes are uniform over 16 or 256 values, whose standard deviations are 4.6 and 74 steps.
    step = deviation / (4.6 if tensor.stored is Stored.Q4_0 else 74.0)
    drawn[:, :2] = np.full((len(drawn), 1), step, np.float16).view(np.uint8)
    return np.resize(drawn, (*tensor.shape[:-1], _row_bytes(tensor)))


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, split_rule: str | None) -> None:
    """Single bytes, then words that no text has: for byte-level BPE, or without a rule for SentencePiece."""
    normal, byte, control = gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.CONTROL
    if split_rule is None:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
        types = [control] * 3 + [byte] * 256
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([float(-index) for index in range(size)])
        writer.add_bos_token_id(1)
    else:
        tokens = [*sorted(ByteLevel.alphabet()), "ab"]
        types = [normal] * len(tokens)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split_rule)
        writer.add_token_merges(["a b"])
    rest = range(len(tokens), size)
    writer.add_token_list([*tokens, *(f"<{index}>" for index in rest)])
    writer.add_token_types(types + [normal] * len(rest))
    writer.add_eos_token_id(size - 1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("path", type=Path, help="the file to write")
    parser.add_argument("--layers", type=int, help="the first so many layers only (default: all)")
    options = parser.parse_args()
    model = MODELS[options.model]
    write(model, options.path, options.layers or model.layers)


if __name__ == "__main__":
    main()
