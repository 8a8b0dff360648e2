"""What every family must do, each a function of a bench: names of tensors, logits, batches, caches, vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

import numpy as np

from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.text_passes.text_pass import text_logits
from aethermind.errors import CheckpointError
from aethermind.llm import SamplingParams
from aethermind.model.architecture import TextEncoder
from aethermind.runtime import Runtime
from aethermind.testing.families.bench import Bench
from aethermind.testing.families.case import ModelCase
from aethermind.testing.families.generation import generate
from aethermind.testing.families.parity import assert_close_to, assert_matches, random_prompts
from aethermind.testing.families.weight_mapping import AlteredTensors, read_parameters

__all__ = ["checks_of", "gguf_names"]

Check = Callable[[Bench], None]
Shapes = Mapping[str, "tuple[int, ...] | None"]

NUM_TOKENS = 32
_CODES_TOLERANCE = 0.08
"""Of logits whose keys and values were rounded to 8 bits, as a fraction of a row's largest."""


def every_tensor_is_read_once(bench: Bench) -> None:
    """Nothing of a checkpoint is left out, and no two parameters share an element."""
    compiled = _plan(bench)
    stored = AlteredTensors(compiled.source.weights())
    values = np.concatenate([array.reshape(-1) for array in read_parameters(compiled, stored).values()])
    unread = [name for name in set(stored.names) - stored.read if not _is_ignored(compiled, name)]
    assert not unread, f"no parameter is made of {sorted(unread)}; list in ignored_names what is not needed"
    assert len(np.unique(values)) == len(values), "elements of the checkpoint are read into more than one parameter"


def a_checkpoint_that_does_not_fit_is_refused(bench: Bench) -> None:
    """With one tensor missing, one too many or one of another shape; the error names it."""
    compiled = _plan(bench)
    stored = compiled.source.weights()
    parameters = [name for name in compiled.parameter_types if name not in compiled.computed]
    for what, shapes in _misfits(compiled):
        try:
            read_parameters(compiled, AlteredTensors(stored, shapes))
        except CheckpointError as error:
            names = [*shapes, *parameters]
            assert any(name in str(error) for name in names), f"the error about {what} names no tensor: {error}"
        else:
            raise AssertionError(f"{what} was not noticed")


def logits_of_every_position(bench: Bench) -> None:
    """All prefixes of one text as prompts of one ragged batch, computed in a single step."""
    (text,) = random_prompts(40, vocab_size=bench.vocab_size)
    with bench.open(max_num_batched_tokens=1024) as llm:
        generated, decisions = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    assert len(decisions) == 1
    assert_close_to(bench.outputs(text), [one.logits[0] for one in generated])


def chunks_of_prompts_in_ragged_batches(bench: Bench) -> None:
    """Requests that join while others decode, their prompts computed in small chunks."""
    with bench.open(max_num_seqs=4, max_num_batched_tokens=12, block_size=4) as llm:
        prompts = random_prompts(1, 41, 5, 23, vocab_size=bench.vocab_size)
        generated, decisions = generate(llm, prompts, NUM_TOKENS, stagger=3)
    assert any(0 < step.num_decodes < len(step.scheduled) for step in decisions), "no step mixed prefill and decode"
    assert any(not entry.needs_logits for step in decisions for entry in step.scheduled), "no prompt was cut in chunks"
    for one in generated:
        assert len(one.token_ids) == NUM_TOKENS
        assert_matches(one, bench.outputs)


def one_prompt_alone(bench: Bench) -> None:
    """A prompt in one piece, then a token a step; `generate` returns the same tokens."""
    (prompt,) = random_prompts(17, vocab_size=bench.vocab_size)
    with bench.open() as llm:
        (generated,), _ = generate(llm, [prompt], NUM_TOKENS)
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], greedy)
    assert_matches(generated, bench.outputs)
    assert output.outputs[0].token_ids == generated.token_ids


def logits_over_a_quantised_cache(bench: Bench) -> None:
    """Keys and values in 8 bits: not the same logits, but those of the same model."""
    (text,) = random_prompts(24, vocab_size=bench.vocab_size)
    with bench.open(kv_cache_dtype="int8", max_num_seqs=32) as llm:
        rows = text_logits(llm.engine, text)
    assert_close_to(bench.outputs(text), list(rows), _CODES_TOLERANCE)


def vectors_of_texts(bench: Bench) -> None:
    """Hidden states of texts of several lengths, pooled in every way, of length 1."""
    texts = random_prompts(1, 7, 24, vocab_size=bench.vocab_size)
    states = [bench.outputs(text) for text in texts]
    with bench.open() as llm:
        for pooling in ("mean", "cls", "last"):
            expected = [{"mean": x.mean(axis=0), "cls": x[0], "last": x[-1]}[pooling] for x in states]
            found = llm.embed([{"prompt_token_ids": text} for text in texts], pooling=pooling)
            for vector, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), rtol=0, atol=2e-6)


def gguf_names(bench: Bench, general_architecture: str) -> None:
    """Tensors of a GGUF file are found under the names of the checkpoint that it was converted from."""
    import gguf

    from aethermind.checkpoint.gguf_tensors import hf_name

    compiled = _plan(bench)
    (kind,) = [kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == general_architecture]
    names = gguf.get_tensor_name_map(kind, compiled.model.config.num_hidden_layers)
    for stored in compiled.source.weights().names:
        converted = names.get_name(stored, try_suffixes=(".weight", ".bias"))
        assert converted is not None, f"the gguf library knows no tensor {stored} in {general_architecture}"
        assert hf_name(converted) == stored, f"{converted} is read as {hf_name(converted)}, not as {stored}"


_OF_DECODERS: tuple[Check, ...] = (
    logits_of_every_position,
    chunks_of_prompts_in_ragged_batches,
    one_prompt_alone,
    logits_over_a_quantised_cache,
)
_OF_ENCODERS: tuple[Check, ...] = (vectors_of_texts,)


def checks_of(case: ModelCase, runtime: Runtime) -> tuple[Check, ...]:
    """What a case's architecture has to pass: decoders answer, encoders compute vectors."""
    model = runtime.architectures.get(case.architecture).create(dict(case.config))
    special = _OF_ENCODERS if isinstance(model, TextEncoder) else _OF_DECODERS
    return (every_tensor_is_read_once, a_checkpoint_that_does_not_fit_is_refused, *special)


def _plan(bench: Bench) -> CompiledModel:
    config = EngineConfig(device=bench.device, max_model_len=bench.case.max_model_len, fallback="allow")
    return compile_model(bench.runtime, bench.directory, config)


def _misfits(compiled: CompiledModel) -> Iterator[tuple[str, Shapes]]:
    stored = compiled.source.weights()
    yield "a tensor too many", {"no.such.weight": (2, 3)}
    for name in stored.names:
        if not _is_ignored(compiled, name):
            shape = stored.info(name).shape
            yield f"{name} missing", {name: None}
            yield f"a column too many in {name}", {name: (*shape[:-1], shape[-1] + 1)}


def _is_ignored(compiled: CompiledModel, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in compiled.ignored_names)
