"""Token mixers with a state of each sequence instead of keys and values: Mamba 2, gated delta nets, short convolutions.

Mamba 2 and gated delta nets project a token's hidden state, convolve some of the projections over the last few tokens,
run a recurrence, norm its results with a gate, and project them back to the hidden size.

Shapes: T tokens, D hidden_size, H heads of the state, G groups of heads that share vectors, J + 1 tokens in the window
of a convolution, C its channels, I = H times the elements of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aethermind.cache.layers import Recurrent
from aethermind.checkpoint.remapped import TensorSlice, rows_by_head
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.blocks.layers import linear, scaled
from aethermind.model.step_inputs import StepInputs

__all__ = [
    "DeltaNetConfig",
    "Mamba2Config",
    "ShortConvConfig",
    "delta_net_mixer",
    "mamba2_mixer",
    "short_conv_mixer",
]


@dataclass(frozen=True, slots=True)
class Mamba2Config:
    """The mixer of Mamba 2 (Dao and Gu 2024, arXiv:2405.21060): H heads of P elements, states of M rows.

    Attributes:
        hidden_size, num_heads, head_dim, state_size, num_groups: D, H, P, M and G.
        conv_kernel: the tokens in the window of a convolution, J + 1.
        eps: the epsilon of the norm.
        dt_min, dt_max: limits of time steps; dt_max is 0 for no limit.
        has_in_bias, has_conv_bias, has_out_bias: whether the projections and the convolution have biases.
        has_norm: whether results are normed; otherwise they are only gated.
        norm_before_gate: whether results are normed before they are gated.
        multipliers: the factors of z, x, B, C and dt, the slices of the input projection's output (Falcon-H1).
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    eps: float
    dt_min: float = 0.0
    dt_max: float = 0.0
    has_in_bias: bool = False
    has_conv_bias: bool = True
    has_out_bias: bool = False
    has_norm: bool = True
    norm_before_gate: bool = False
    multipliers: tuple[float, float, float, float, float] = (1.0,) * 5

    @property
    def inner_size(self) -> int:
        """The elements of all heads, I = H · P."""
        return self.num_heads * self.head_dim

    @property
    def conv_widths(self) -> tuple[int, int, int]:
        """The numbers of channels of x, B and C."""
        return self.inner_size, self.num_groups * self.state_size, self.num_groups * self.state_size

    @property
    def state(self) -> Recurrent:
        """What a layer caches of each sequence."""
        recurrent = (self.num_heads, self.state_size, self.head_dim)
        return _state(self.conv_kernel, sum(self.conv_widths), recurrent)

    def slices(self, prefix: str) -> Iterator[tuple[str, TensorSlice]]:
        """Yield the tensors of the graph that are slices of stored tensors; `prefix` is the mixer's name in both.

        The checkpoint has `in_proj`, whose rows are z, x, B, C and dt, and `conv1d.weight` [C, 1, J + 1].
        """
        ends = self.inner_size, self.inner_size + sum(self.conv_widths)
        for kind in ("weight", "bias") if self.has_in_bias else ("weight",):
            for name, begin, end in (("z", 0, ends[0]), ("xbc", *ends), ("dt", ends[1], None)):
                yield f"{prefix}.{name}_proj.{kind}", TensorSlice(f"{prefix}.in_proj.{kind}", begin=begin, end=end)
        yield _transposed_convolution(f"{prefix}.conv1d")


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """A gated delta net (Yang et al. 2024, arXiv:2412.06464): G query and key heads, H value heads and states.

    Attributes:
        hidden_size, num_key_heads, num_value_heads, key_dim, value_dim: D, G, H and the elements of a head.
        conv_kernel: the tokens in the window of a convolution, J + 1.
        eps: the epsilon of the norm.
    """

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    eps: float

    @property
    def conv_width(self) -> int:
        """The number of channels of queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def state(self) -> Recurrent:
        """What a layer caches of each sequence."""
        return _state(self.conv_kernel, self.conv_width, (self.num_value_heads, self.key_dim, self.value_dim))

    def slices(self, prefix: str) -> Iterator[tuple[str, TensorSlice]]:
        """Yield the tensors of the graph that are stored in another layout: the convolution."""
        yield _transposed_convolution(f"{prefix}.conv1d")

    def fused_slices(self, prefix: str) -> Iterator[tuple[str, TensorSlice]]:
        """Yield the same for a checkpoint that fuses projections head by head (Qwen3-Next).

        The checkpoint has `in_proj_qkvz`, with the rows q, k, v and z of one key head (v and z of all its value heads)
        after another, and `in_proj_ba`, with the rows b and a.
        """
        yield from self.slices(prefix)
        values_per_key = self.num_value_heads // self.num_key_heads
        widths = (self.key_dim, self.key_dim, values_per_key * self.value_dim, values_per_key * self.value_dim)
        q, k, v, z = rows_by_head(self.num_key_heads, widths)
        fused = f"{prefix}.in_proj_qkvz.weight"
        yield f"{prefix}.in_proj_qkv.weight", TensorSlice(fused, order=(*q, *k, *v))
        yield f"{prefix}.in_proj_z.weight", TensorSlice(fused, order=z)
        rows_of_ba = rows_by_head(self.num_key_heads, (values_per_key, values_per_key))
        for name, rows in zip("ba", rows_of_ba, strict=True):
            yield f"{prefix}.in_proj_{name}.weight", TensorSlice(f"{prefix}.in_proj_ba.weight", order=rows)


@dataclass(frozen=True, slots=True)
class ShortConvConfig:
    """A gated short convolution (LFM2) of D channels, with a window of `conv_kernel` tokens, J + 1."""

    hidden_size: int
    conv_kernel: int
    has_bias: bool = False

    @property
    def state(self) -> Recurrent:
        """What a layer caches of each sequence."""
        return Recurrent((("conv_state", (self.conv_kernel - 1, self.hidden_size)),))

    def slices(self, prefix: str) -> Iterator[tuple[str, TensorSlice]]:
        """Yield the tensors of the graph that are slices of stored tensors; `prefix` is the mixer's name in both.

        The checkpoint has `in_proj`, whose rows are b, c and x, and the convolution `conv`.
        """
        for kind in ("weight", "bias") if self.has_bias else ("weight",):
            for index, name in enumerate("bcx"):
                rows = slice(index * self.hidden_size, None if name == "x" else (index + 1) * self.hidden_size)
                stored = f"{prefix}.in_proj.{kind}"
                yield f"{prefix}.{name}_proj.{kind}", TensorSlice(stored, begin=rows.start, end=rows.stop)
        yield _transposed_convolution(f"{prefix}.conv")


def mamba2_mixer(
    builder: GraphBuilder, x_TD: Value, inputs: StepInputs, layer: int, config: Mamba2Config, prefix: str
) -> Value:
    """Write the mixer of Mamba 2, [T, D], with the state of `layer`.

    Weights: `{prefix}.z_proj`, `xbc_proj` and `dt_proj`, slices of the checkpoint's `in_proj` (see
    `Mamba2Config.slices`); `conv1d`, transposed; `A_log`, `dt_bias` and `D`, float32 [H]; `norm.weight` if there is a
    norm; `out_proj`.
    """
    inner, heads, channels = config.inner_size, config.num_heads, sum(config.conv_widths)
    z_factor, *xbc_factors, dt_factor = config.multipliers
    with builder.scope(prefix):
        z_TI, xbc_TC, dt_TH = (
            linear(builder, x_TD, f"{prefix}.{name}_proj", width, config.hidden_size, has_bias=config.has_in_bias)
            for name, width in (("z", inner), ("xbc", channels), ("dt", heads))
        )
        z_TI, dt_TH = scaled(builder, z_TI, z_factor), scaled(builder, dt_TH, dt_factor)
        factors = [factor for factor, width in zip(xbc_factors, config.conv_widths, strict=True) for _ in range(width)]
        xbc_TC = _convolution(
            builder,
            xbc_TC,
            inputs,
            layer,
            f"{prefix}.conv1d",
            config.conv_kernel,
            factors,
            has_bias=config.has_conv_bias,
        )
        scalars = [builder.parameter(f"{prefix}.{name}", (heads,), DType.FLOAT32) for name in ("A_log", "dt_bias", "D")]
        state = builder.latest(inputs.caches[layer]["recurrent_state"])
        limits = {"dt_min": config.dt_min, "dt_max": config.dt_max}
        out_THP, _ = builder.op("ssd_scan", xbc_TC, dt_TH, *scalars, state, *_tables(inputs), **limits)
        out_TI = builder.op("merge_heads", out_THP)
        if config.has_norm:
            norm_I = builder.parameter(f"{prefix}.norm.weight", (inner,))
            attributes = {"eps": config.eps, "num_groups": config.num_groups}
            attributes["norm_before_gate"] = config.norm_before_gate
            out_TI = builder.op("gated_rms_norm", out_TI, z_TI, norm_I, **attributes)
        else:
            out_TI = builder.op("silu_mul", z_TI, out_TI)
        return linear(builder, out_TI, f"{prefix}.out_proj", config.hidden_size, inner, has_bias=config.has_out_bias)


def delta_net_mixer(
    builder: GraphBuilder, x_TD: Value, inputs: StepInputs, layer: int, config: DeltaNetConfig, prefix: str
) -> Value:
    """Write a gated delta net, [T, D], with the state of `layer`.

    Weights: `{prefix}.in_proj_qkv.weight`, `in_proj_z`, `in_proj_b`, `in_proj_a`; `conv1d`, transposed; `A_log` and
    `dt_bias`, float32 [H]; `norm.weight` of one head; `out_proj.weight`.
    """
    heads, width = config.num_value_heads, config.value_dim
    with builder.scope(prefix):
        qkv_TC, z_TI, b_TH, a_TH = (
            linear(builder, x_TD, f"{prefix}.in_proj_{name}", rows, config.hidden_size, has_bias=False)
            for name, rows in (("qkv", config.conv_width), ("z", heads * width), ("b", heads), ("a", heads))
        )
        qkv_TC = _convolution(builder, qkv_TC, inputs, layer, f"{prefix}.conv1d", config.conv_kernel)
        scalars = [builder.parameter(f"{prefix}.{name}", (heads,), DType.FLOAT32) for name in ("A_log", "dt_bias")]
        state = builder.latest(inputs.caches[layer]["recurrent_state"])
        operands = (qkv_TC, a_TH, b_TH, *scalars, state, *_tables(inputs))
        out_THE, _ = builder.op("gated_delta_rule", *operands, scale=config.key_dim**-0.5)
        z_THE = builder.op("split_heads", z_TI, num_heads=heads)
        norm_E = builder.parameter(f"{prefix}.norm.weight", (width,))
        out_THE = builder.op("gated_rms_norm", out_THE, z_THE, norm_E, eps=config.eps, norm_before_gate=True)
        out_TI = builder.op("merge_heads", out_THE)
        return linear(builder, out_TI, f"{prefix}.out_proj", config.hidden_size, heads * width, has_bias=False)


def short_conv_mixer(
    builder: GraphBuilder, x_TD: Value, inputs: StepInputs, layer: int, config: ShortConvConfig, prefix: str
) -> Value:
    """Write a gated short convolution, out(c(x) · convolution(b(x) · x(x))), [T, D].

    Weights: `{prefix}.b_proj`, `c_proj` and `x_proj`, slices of the checkpoint's `in_proj`; `conv`, transposed;
    `out_proj`.
    """
    width, has_bias = config.hidden_size, config.has_bias
    with builder.scope(prefix):
        b_TD, c_TD, inner_TD = (
            linear(builder, x_TD, f"{prefix}.{name}_proj", width, width, has_bias=has_bias) for name in "bcx"
        )
        inner_TD = builder.op("mul", b_TD, inner_TD)
        name = f"{prefix}.conv"
        inner_TD = _convolution(
            builder, inner_TD, inputs, layer, name, config.conv_kernel, silu=False, has_bias=has_bias
        )
        inner_TD = builder.op("mul", c_TD, inner_TD)
        return linear(builder, inner_TD, f"{prefix}.out_proj", width, width, has_bias=has_bias)


def _convolution(
    builder: GraphBuilder,
    x_TC: Value,
    inputs: StepInputs,
    layer: int,
    name: str,
    kernel: int,
    factors: list[float] | None = None,
    *,
    has_bias: bool = False,
    silu: bool = True,
) -> Value:
    """Write the convolution of x, multiplied by a factor for each channel if there are factors, then silu if set."""
    _, channels = x_TC.type.shape
    assert isinstance(channels, int)
    weight_KC = builder.parameter(f"{name}.weight", (kernel, channels))
    bias_C = builder.parameter(f"{name}.bias", (channels,)) if has_bias else None
    if factors is not None and set(factors) != {1.0}:  # multiplying the weights has the same effect and costs less
        import numpy as np

        values = np.tile(np.asarray(factors), (kernel, 1)).astype(builder.dtype.numpy)
        weight_KC = builder.op("mul", weight_KC, builder.constant(f"{name}.multipliers", values))
    state = builder.latest(inputs.caches[layer]["conv_state"])
    operands = (x_TC, weight_KC, bias_C, state, *_tables(inputs))
    out_TC: Value = builder.op("causal_conv1d", *operands, silu=silu)[0]
    return out_TC


def _tables(inputs: StepInputs) -> tuple[Value, Value, Value]:
    """Return the inputs that say which rows and which state slot belong to each sequence."""
    assert inputs.state_slots is not None, "a model with recurrent layers declares them in its cache layout"
    return inputs.cu_seqlens_q, inputs.seqlens_k, inputs.state_slots


def _state(conv_kernel: int, channels: int, recurrent: tuple[int, int, int]) -> Recurrent:
    return Recurrent((("conv_state", (conv_kernel - 1, channels)), ("recurrent_state", recurrent)))


def _transposed_convolution(module: str) -> tuple[str, TensorSlice]:
    name = f"{module}.weight"
    return name, TensorSlice(name, is_transposed=True)
