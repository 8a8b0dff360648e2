"""The checks that every model family has to pass. Each is a function of a `Bench`, a small model on a device."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from aethermind.cache.layers import has_latent
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_weights import open_weights
from aethermind.engine.text_pass import text_logits
from aethermind.errors import CheckpointError
from aethermind.llm import SamplingParams
from aethermind.model.architecture import AdaptsWeights, TextEncoder, cache_layout
from aethermind.ops.weight_format import QuantizedWeight
from aethermind.runtime import Runtime
from aethermind.testing.families.case import ModelCase
from aethermind.testing.families.parity import Bench, assert_close_to, assert_matches, generate, random_prompts

__all__ = ["AlteredTensors", "checks_of", "gguf_names", "read_parameters"]


class AlteredTensors:
    """Stored tensors, some with another shape or missing (a shape of None); implements `StoredTensors`.

    Values are distinct random numbers in float64; `read` are the names of tensors whose values were read.
    """

    def __init__(self, stored: StoredTensors, shapes: Mapping[str, tuple[int, ...] | None] | None = None) -> None:
        self._infos = {name: stored.info(name) for name in stored.names}
        self._stored = stored
        self.read: set[str] = set()
        template = next(iter(self._infos.values()))
        for name, shape in (shapes or {}).items():
            self._infos.pop(name, None)
            if shape is not None:
                self._infos[name] = replace(template, shape=shape)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._infos)

    @property
    def total_bytes(self) -> int:
        return self._stored.total_bytes

    @property
    def paths(self) -> tuple[Path, ...]:
        return self._stored.paths

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        return ()

    def info(self, name: str) -> TensorInfo:
        if name not in self._infos:
            raise CheckpointError(f"The checkpoint has no tensor {name!r}.")
        return self._infos[name]

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        shape = self.info(name).shape
        self.read.add(name)
        return np.random.default_rng(zlib.crc32(name.encode())).random(shape)


def read_parameters(compiled: CompiledModel, stored: AlteredTensors) -> dict[str, npt.NDArray[Any]]:
    """Return every parameter of the model, read from these tensors; CheckpointError where they do not fit."""
    weights = open_weights(replace(compiled, source=cast(Any, _TensorSource(stored))))
    names = [name for name in compiled.parameter_types if name not in compiled.computed]
    return {name: np.asarray(weights.array(name)) for name in names}


class _TensorSource:
    """A model source that has tensors only."""

    def __init__(self, stored: AlteredTensors) -> None:
        self._stored = stored

    def weights(self) -> AlteredTensors:
        return self._stored


Check = Callable[[Bench], None]
Shapes = Mapping[str, "tuple[int, ...] | None"]

NUM_TOKENS = 32
_INT8_CACHE_TOLERANCE = 0.08
"""The tolerance of logits over an int8 KV cache, as a fraction of the largest logit of a row."""
_ROUTER_OPERATOR = "router_topk"
_MAX_REROUTED = 0.4
"""The fraction of rows of a mixture of experts that may exceed `_INT8_CACHE_TOLERANCE`."""


def every_tensor_is_read_once(bench: Bench) -> None:
    """Check that all tensors of a checkpoint are read, and that no two parameters share an element."""
    compiled = _compile(bench)
    stored = AlteredTensors(compiled.source.weights())
    values = np.concatenate([array.reshape(-1) for array in read_parameters(compiled, stored).values()])
    unread = [name for name in set(stored.names) - stored.read if not _is_ignored(compiled, name)]
    assert not unread, f"no parameter is made of {sorted(unread)}; list in ignored_names what is not needed"
    assert len(np.unique(values)) == len(values), "elements of the checkpoint are read into more than one parameter"


def a_checkpoint_that_does_not_fit_is_refused(bench: Bench) -> None:
    """Check that a missing, an additional or a misshapen tensor is an error that names it."""
    compiled = _compile(bench)
    stored = compiled.source.weights()
    parameters = [name for name in compiled.parameter_types if name not in compiled.computed]
    for what, shapes in _altered_shapes(compiled):
        try:
            read_parameters(compiled, AlteredTensors(stored, shapes))
        except CheckpointError as error:
            names = [*shapes, *parameters]
            assert any(name in str(error) for name in names), f"the error about {what} names no tensor: {error}"
        else:
            raise AssertionError(f"{what} was not noticed")


def logits_of_every_position(bench: Bench) -> None:
    """Check the logits of all prefixes of a text, which are the prompts of one ragged batch."""
    (text,) = random_prompts(40, vocab_size=bench.vocab_size)
    with bench.open(max_num_batched_tokens=1024, enable_prefix_caching=False) as llm:  # no prompt waits for another
        generated, decisions = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    assert len(decisions) == 1
    assert_close_to(bench.outputs(text), [result.logits[0] for result in generated], bench.tolerance)


def chunks_of_prompts_in_ragged_batches(bench: Bench) -> None:
    """Check continuous batching with chunked prefill: requests join while others decode."""
    with bench.open(max_num_seqs=4, max_num_batched_tokens=12, block_size=4) as llm:
        prompts = random_prompts(1, 41, 5, 23, vocab_size=bench.vocab_size)
        generated, decisions = generate(llm, prompts, NUM_TOKENS, stagger=3)
    assert any(0 < step.num_decodes < len(step.scheduled) for step in decisions), "no step mixed prefill and decode"
    assert any(not entry.needs_logits for step in decisions for entry in step.scheduled), "no prompt was cut in chunks"
    for result in generated:
        assert len(result.token_ids) == NUM_TOKENS
        assert_matches(result, bench.outputs, bench.tolerance)


def one_prompt_alone(bench: Bench) -> None:
    """Check a whole prefill followed by decode steps; `generate` returns the same tokens."""
    (prompt,) = random_prompts(17, vocab_size=bench.vocab_size)
    with bench.open() as llm:
        (generated,), _ = generate(llm, [prompt], NUM_TOKENS)
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], greedy)
    assert_matches(generated, bench.outputs, bench.tolerance)
    assert output.outputs[0].token_ids == generated.token_ids


def logits_over_a_quantised_cache(bench: Bench) -> None:
    """Check the logits with keys and values quantised to 8 bits, within a wider tolerance.

    In a mixture of experts, a small change may choose another expert, which changes all of a row. There a part of the
    rows may differ.
    """
    (text,) = random_prompts(24, vocab_size=bench.vocab_size)
    with bench.open(kv_cache_dtype="int8", max_num_seqs=32) as llm:
        rows = text_logits(llm.engine, text)
        is_mixture = any(node.operator == _ROUTER_OPERATOR for node in llm.engine.compiled.step.graph.nodes)
    assert_close_to(bench.outputs(text), list(rows), _INT8_CACHE_TOLERANCE, _MAX_REROUTED if is_mixture else 0)


def vectors_of_texts(bench: Bench) -> None:
    """Check the embeddings of texts of several lengths, for every pooling, normalised to length 1."""
    texts = random_prompts(1, 7, 24, vocab_size=bench.vocab_size)
    states = [bench.outputs(text) for text in texts]
    with bench.open() as llm:
        for pooling in ("mean", "cls", "last"):
            expected = [{"mean": x.mean(axis=0), "cls": x[0], "last": x[-1]}[pooling] for x in states]
            found = llm.embed([{"prompt_token_ids": text} for text in texts], pooling=pooling)
            for vector, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), rtol=0, atol=2e-6)


def gguf_names(bench: Bench, general_architecture: str) -> None:
    """Check that tensors of a GGUF file have the names of the checkpoint that it was converted from."""
    import gguf

    from aethermind.checkpoint.gguf_tensors import GgufNames, hf_name

    compiled = _compile(bench)
    (gguf_architecture,) = [key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == general_architecture]
    name_map = gguf.get_tensor_name_map(gguf_architecture, compiled.model.config.num_hidden_layers)
    family = bench.runtime.gguf_families.get(general_architecture)
    family_names = GgufNames(family.modules, family.outside, family.layers)
    stored = compiled.source.weights()
    candidates = [stored, compiled.model.adapt(stored)] if isinstance(compiled.model, AdaptsWeights) else [stored]
    problems = []
    for weights in candidates:
        names = [converted for name in weights.names for converted in _as_converted(name)]
        read = {
            name: name_map.get_name(name, _SUFFIXES) or name_map.get_name(name.removeprefix("transformer."), _SUFFIXES)
            for name in names
        }
        problems.append(
            [
                f"{found or 'no tensor of the gguf library'} is read for {name} in {general_architecture}"
                for name, found in read.items()
                if found is None or _as_converted(hf_name(found, family_names)) != [name]
            ]
        )
    assert [] in problems, problems[0][0]


_SUFFIXES = (".weight", ".bias")
_RENAMED_ENDINGS = {".e_score_correction_bias": ".e_score_correction.bias", ".dt_bias": ".dt_proj.bias"}
"""Endings of names that converters change before all others."""


def _as_converted(name: str) -> list[str]:
    """The names of a tensor, or of its parts, as converters look them up: experts are stacked, gates are cut off, and
    suffixes of weights are completed.
    """
    for ending, other in _RENAMED_ENDINGS.items():
        if name.endswith(ending):
            return [name.removesuffix(ending) + other]
    name = re.sub(r"\.experts\.\d+\.", ".experts.", name)
    name = name if name.endswith((*_SUFFIXES, ".A_log", ".D")) else f"{name}.weight"
    fused = ".experts.gate_up_proj."
    return [name.replace(fused, f".experts.{part}_proj.") for part in (("gate", "up") if fused in name else ("",))]


_DECODER_CHECKS: tuple[Check, ...] = (
    logits_of_every_position,
    chunks_of_prompts_in_ragged_batches,
    one_prompt_alone,
    logits_over_a_quantised_cache,
)
_ENCODER_CHECKS: tuple[Check, ...] = (vectors_of_texts,)


def checks_of(case: ModelCase, runtime: Runtime) -> tuple[Check, ...]:
    """Return the checks for a case: those of decoders or of encoders, and those of all.

    Latent caches are not quantised.
    """
    model = runtime.architectures.get(case.architecture).create(dict(case.config))
    special = _ENCODER_CHECKS if isinstance(model, TextEncoder) else _DECODER_CHECKS
    if not isinstance(model, TextEncoder) and has_latent(cache_layout(model)):
        special = tuple(check for check in special if check is not logits_over_a_quantised_cache)
    return (every_tensor_is_read_once, a_checkpoint_that_does_not_fit_is_refused, *special)


def _compile(bench: Bench) -> CompiledModel:
    config = EngineConfig(device=bench.device, max_model_len=bench.case.max_model_len, fallback="allow")
    return compile_model(bench.runtime, bench.directory, config)


def _altered_shapes(compiled: CompiledModel) -> Iterator[tuple[str, Shapes]]:
    stored = compiled.source.weights()
    yield "a tensor too many", {"no.such.weight": (2, 3)}
    for name in stored.names:
        if not _is_ignored(compiled, name):
            shape = stored.info(name).shape
            yield f"{name} missing", {name: None}
            yield f"a column too many in {name}", {name: (*shape[:-1], shape[-1] + 1)}


def _is_ignored(compiled: CompiledModel, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in compiled.ignored_names)
