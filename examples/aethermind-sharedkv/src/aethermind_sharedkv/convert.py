"""Conversion of a checkpoint to one whose layers share keys and values, and what the model loses by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aethermind import LLM, SamplingParams
from aethermind.checkpoint import Checkpoint
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.model import DecoderConfig, read_decoder_config
from aethermind_sharedkv.architecture import check_sources
from aethermind_sharedkv.fit import Array, AttentionSample, fit_outputs, fit_queries

__all__ = ["Quality", "convert", "measure", "open_model", "windows"]

WINDOW = 128
"""Tokens of a text that are computed at once."""

_HAS_QKV_BIAS = {"Qwen2ForCausalLM": True, "LlamaForCausalLM": False}
_OPENING = "Once upon a time"
_NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "config.json")


@dataclass(frozen=True, slots=True)
class Quality:
    """Predictions of a text: perplexity, and the most likely token at each position."""

    perplexity: float
    top_tokens: tuple[int, ...]

    def agreement(self, other: Quality) -> float:
        """The fraction of positions at which both have the same most likely token."""
        return float(np.mean([one == two for one, two in zip(self.top_tokens, other.top_tokens, strict=True)]))


def open_model(model: str | Path, **options: Any) -> LLM:
    """Open a model that computes a window of text in one step, in float32, and reuses nothing."""
    options |= {"max_model_len": WINDOW + 1, "max_num_batched_tokens": WINDOW + 1, "enable_prefix_caching": False}
    return LLM(str(model), dtype="float32", **options)


def windows(llm: LLM, text: str | None, num_tokens: int) -> list[list[int]]:
    """The first tokens of a text, or as many that the model samples, in pieces of `WINDOW` tokens."""
    if text is not None:
        ids = llm.tokenizer.encode(text)[:num_tokens]
        return [ids[begin : begin + WINDOW] for begin in range(0, len(ids), WINDOW)]
    sampled = SamplingParams(temperature=1.0, max_tokens=WINDOW - len(llm.tokenizer.encode(_OPENING)), ignore_eos=True)
    outputs = llm.generate([_OPENING] * -(-num_tokens // WINDOW), sampled)
    return [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs]


def measure(llm: LLM, texts: Sequence[Sequence[int]]) -> Quality:
    """Measure a model's predictions of texts."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    losses, tops = [], []
    for output in llm.generate([{"prompt_token_ids": list(ids)} for ids in texts], params):
        for token_id, found in zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=True):
            if found is not None:  # none of the first token
                losses.append(-found[token_id].logprob)
                tops.append(max(found.items(), key=lambda item: item[1].logprob)[0])
    return Quality(float(np.exp(np.mean(losses))), tuple(tops))


def convert(
    source: Path, target: Path, sources: Mapping[int, int], llm: LLM | None, texts: Sequence[Sequence[int]]
) -> None:
    """Write the model of a directory to another one, in which each key of `sources` reads its value's layer.

    Readers are fitted to `texts`, which `llm`, the same model, computes; without texts they remain as they are.
    ConfigError for a model or layers that cannot share; InvalidArgumentError if the target exists.
    """
    raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (architecture,) = raw.get("architectures") or ("",)
    if architecture not in _HAS_QKV_BIAS or raw.get("attention_bias") or raw.get("use_sliding_window"):
        raise ConfigError(f"{source} is a {architecture}; name a {' or a '.join(_HAS_QKV_BIAS)} with full attention.")
    has_bias = _HAS_QKV_BIAS[architecture]
    kv_sources = [sources.get(layer, layer) for layer in range(raw["num_hidden_layers"])]
    check_sources(kv_sources, max(len(kv_sources), *(reader + 1 for reader in sources)))
    weights = Checkpoint.open(source)
    config = read_decoder_config(raw, defaults={"max_window_layers": 0, "sliding_window": 0, **raw})
    fitted: dict[str, Array] = {}
    if llm is not None and texts:
        inputs = list(_layer_inputs(llm, sources, texts))
        for reader, read in sources.items():
            fitted |= _fit(weights, config, reader, read, inputs, has_bias=has_bias)
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    except FileExistsError:
        raise InvalidArgumentError(f"{target} exists; name a directory that does not.") from None
    more = {"architectures": ["SharedKVForCausalLM"], "kv_sources": kv_sources, "qkv_bias": has_bias}
    rest = {name: value for name, value in raw.items() if name != "model_type"}
    (target / "config.json").write_text(json.dumps({**rest, **more}, indent=2), encoding="utf-8")
    _write(target / "model.safetensors", weights, fitted, {name for reader in sources for name in _unused(reader)})


def _unused(reader: int) -> Iterator[str]:
    for name in ("k_proj", "v_proj"):
        for kind in ("weight", "bias"):
            yield f"model.layers.{reader}.self_attn.{name}.{kind}"


def _write(path: Path, weights: Checkpoint, fitted: Mapping[str, Array], unused: set[str]) -> None:
    """Write a .safetensors file with the stored dtypes."""
    header: dict[str, Any] = {}
    end = 0
    names = [name for name in weights.names if name not in unused]
    for name in names:
        info = weights.info(name)
        begin, end = end, end + info.dtype.itemsize * int(np.prod(info.shape))
        header[name] = {"dtype": info.dtype_name, "shape": info.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            value = fitted.get(name, weights.array(name))
            file.write(np.ascontiguousarray(value, weights.info(name).dtype).tobytes())


# -- fitting readers -----------------------------------------------------------------------------------------


def _layer_inputs(llm: LLM, sources: Mapping[int, int], texts: Iterable[Sequence[int]]) -> Iterator[dict[str, Array]]:
    """The inputs of layers' attention by layer, [T, D], and the rope table, [T, C], of each text."""
    found: dict[str, Array] = {}

    def see(kind: str, name: str, array: Any, info: Any) -> None:
        if info.phase == "prefill" and not name.endswith(".total"):  # the sum that is normed
            found[kind] = np.asarray(array, np.float64)[: info.num_tokens]

    with ExitStack() as stack:
        for layer in {*sources.keys(), *sources.values()}:
            pattern = f"model.layers.{layer}.input_layernorm*"
            stack.enter_context(llm.hooks.on(pattern, partial(see, str(layer))))
        stack.enter_context(llm.hooks.on("rope_table", partial(see, "rope_table")))
        for ids in texts:
            llm.generate({"prompt_token_ids": list(ids)}, SamplingParams(temperature=0.0, max_tokens=1))
            yield dict(found)


def _fit(
    weights: Checkpoint,
    config: DecoderConfig,
    reader: int,
    source: int,
    inputs: Sequence[Mapping[str, Array]],
    *,
    has_bias: bool,
) -> dict[str, Array]:
    """The projections of queries and outputs of a reader, by name."""

    def parameter(layer: int, name: str) -> Array:
        return np.asarray(weights.array(f"model.layers.{layer}.self_attn.{name}")).astype(np.float64)

    def heads(layer: int, name: str, x: Array) -> Array:
        rows = x @ parameter(layer, f"{name}_proj.weight").T
        rows = rows + parameter(layer, f"{name}_proj.bias") if has_bias else rows
        return rows.reshape(len(x), -1, config.head_dim)

    samples = []
    for seen in inputs:
        cos, sin = np.split(seen["rope_table"], 2, axis=-1)
        if 2 * cos.shape[-1] != config.head_dim:
            raise ConfigError("Only a part of each head is rotated; readers of such a model are not fitted.")
        own, other = seen[str(reader)], seen[str(source)]
        rotated = partial(_rotated, cos=cos[:, None], sin=sin[:, None])
        queries, own_keys, keys = (
            rotated(heads(layer, name, x))
            for layer, name, x in ((reader, "q", own), (reader, "k", own), (source, "k", other))
        )
        values = (heads(layer, "v", x) for layer, x in ((reader, own), (source, other)))
        own_values, other_values = values
        samples.append(
            AttentionSample(queries, own_keys, own_values, keys, other_values, cos, sin, config.head_dim**-0.5)
        )
    maps = [fit_queries(samples, head, has_bias=has_bias) for head in range(config.num_attention_heads)]
    depth, prefix = config.head_dim, f"model.layers.{reader}.self_attn"
    weight = parameter(reader, "q_proj.weight").reshape(len(maps), depth, -1)
    found = {
        f"{prefix}.q_proj.weight": np.vstack([fit[:depth].T @ rows for fit, rows in zip(maps, weight, strict=True)]),
        f"{prefix}.o_proj.weight": fit_outputs(samples, maps, parameter(reader, "o_proj.weight")),
    }
    if has_bias:
        bias = parameter(reader, "q_proj.bias").reshape(len(maps), depth)
        pairs = zip(maps, bias, strict=True)
        found[f"{prefix}.q_proj.bias"] = np.hstack([rows @ fit[:depth] + fit[depth] for fit, rows in pairs])
    return found


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
