"""`lm_head_dtype` and `embedding_dtype`: the output projection and the embeddings in a dtype of their own."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.end_to_end.gguf_files import write_gguf
from tests.qwen2.checkpoints import qwen2, write_checkpoint

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.memory_estimate import MemoryPlanner
from aethermind.engine.loading.model_graph import GraphKind
from aethermind.engine.text_pass import run_text, text_logits
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

Directories = Callable[[ModelCase], Path]
Array = np.ndarray[Any, Any]

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
TIED = qwen2("head_tied", **SIZES, vocab_size=160, tie_word_embeddings=True)
UNTIED = qwen2("head_untied", **SIZES, vocab_size=160)
GEMMA = ModelCase("head_gemma", "Gemma3ForCausalLM", {**TIED.config, "head_dim": 16, "query_pre_attn_scalar": 16})
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def opened(path: Path, runtime: Runtime, device: str = "cpu", **options: Any) -> LLM:
    settings: dict[str, Any] = {"max_num_seqs": 32, "num_kv_blocks": 8, "max_model_len": 64, "fallback": "allow"}
    return LLM(path, device=device, runtime=runtime, **{**settings, **options})


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    written: dict[str, Path] = {}

    def directory(case: ModelCase) -> Path:
        if case.name not in written:
            written[case.name] = write_checkpoint(case, tmp_path_factory.mktemp(case.name) / "model")
        return written[case.name]

    return directory


def hidden_states(llm: LLM) -> Array:
    """What the output projection reads, [T, hidden_size]."""
    engine = llm.engine
    executor = engine.runner.executor_of(GraphKind.HIDDEN_STATES)
    pieces = run_text(executor, engine.runner.kv_memory, engine.cache, TEXT)
    return np.concatenate([executor.output("hidden_states", symbols).copy() for _, _, symbols in pieces])


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("case", [TIED, UNTIED], ids=lambda case: case.name)
def test_logits_are_the_float32_product_of_bfloat16_hidden_states(
    directories: Directories, runtime: Runtime, case: ModelCase, device: str
) -> None:
    directory = directories(case)
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    head = weights[HEAD if HEAD in weights else EMBEDDINGS].double()
    with opened(directory, runtime, device, dtype="bfloat16", lm_head_dtype="float32") as llm:
        logits, states = text_logits(llm.engine, TEXT), hidden_states(llm)
    assert states.dtype == ml_dtypes.bfloat16
    wide = torch.from_numpy(states.astype(np.float64))
    error = np.abs(logits - (wide @ head.T).numpy())
    assert (error <= 1e-6 * (wide.abs() @ head.abs().T).numpy()).all()


def test_gemma_is_closer_to_transformers_with_float32_at_both_ends(directories: Directories, runtime: Runtime) -> None:
    directory = directories(GEMMA)
    expected = TransformersReference().outputs(GEMMA, directory)(TEXT)
    errors = []
    for options in ({}, {"lm_head_dtype": "float32", "embedding_dtype": "float32"}):
        with opened(directory, runtime, dtype="bfloat16", **options) as llm:
            errors.append(float(np.linalg.norm(text_logits(llm.engine, TEXT) - expected)))
    assert errors[1] < errors[0]


def test_embeddings_are_rounded_to_their_dtype(directories: Directories, runtime: Runtime, tmp_path: Path) -> None:
    shutil.copytree(directories(UNTIED), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {name: tensor.float() for name, tensor in safetensors.torch.load_file(file).items()}
    tensors[EMBEDDINGS] *= 1.01
    logits = []
    for options in ({"embedding_dtype": "bfloat16"}, {}):
        safetensors.torch.save_file(tensors, file)
        with opened(tmp_path / "model", runtime, dtype="float32", **options) as llm:
            logits.append(text_logits(llm.engine, TEXT))
        tensors[EMBEDDINGS] = tensors[EMBEDDINGS].bfloat16().float()
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize(
    ("case", "factor"), [(UNTIED, 1.0), (GEMMA, 8.0)], ids=lambda value: getattr(value, "name", "")
)
def test_embeddings_beyond_float16_are_refused_where_they_become_activations(
    directories: Directories, runtime: Runtime, tmp_path: Path, case: ModelCase, factor: float
) -> None:
    """Gemma multiplies embeddings by the root of its width, 8."""
    shutil.copytree(directories(case), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for largest, is_refused in ((65280.0, False), (66048.0, True)):
        tensors[EMBEDDINGS][3, 5] = -largest / factor
        safetensors.torch.save_file(tensors, file)
        options: dict[str, Any] = {"dtype": "float16", "embedding_dtype": "float32", "lm_head_dtype": "float32"}
        if not is_refused:
            opened(tmp_path / "model", runtime, **options).close()
            continue
        with pytest.raises(CheckpointError, match=f"{EMBEDDINGS}.* are up to 6.605e.04, beyond float16") as caught:
            opened(tmp_path / "model", runtime, **options)
        assert "\n" not in str(caught.value)
    opened(tmp_path / "model", runtime, dtype="bfloat16", embedding_dtype="float32").close()


@pytest.mark.parametrize(
    ("case", "options", "dtypes"),
    [
        (TIED, {}, {EMBEDDINGS: "bfloat16"}),
        (TIED, {"lm_head_dtype": "bfloat16"}, {EMBEDDINGS: "bfloat16"}),
        (TIED, {"lm_head_dtype": "float32"}, {EMBEDDINGS: "bfloat16", f"{EMBEDDINGS}@float32": "float32"}),
        (TIED, {"embedding_dtype": "float32"}, {EMBEDDINGS: "float32", f"{EMBEDDINGS}@bfloat16": "bfloat16"}),
        (TIED, {"lm_head_dtype": "float32", "embedding_dtype": "float32"}, {EMBEDDINGS: "float32"}),
        (UNTIED, {"lm_head_dtype": "float16"}, {EMBEDDINGS: "bfloat16", HEAD: "float16"}),
    ],
)
def test_tied_embeddings_are_one_weight_where_dtypes_agree(
    directories: Directories, runtime: Runtime, case: ModelCase, options: dict[str, str], dtypes: dict[str, str]
) -> None:
    with opened(directories(case), runtime, dtype="bfloat16", **options) as llm:
        types = llm.engine.compiled.parameter_types
        found = {name: str(type.dtype) for name, type in types.items() if "embed" in name or "lm_head" in name}
        assert found == dtypes
        planned = MemoryPlanner(llm.engine.compiled).estimate()
        held = llm.engine.runner.constants.nbytes
    assert planned.device["weights"] + planned.mapped_bytes == held


def test_a_quantised_model_keeps_its_formats_but_the_heads(
    directories: Directories, runtime: Runtime, tmp_path: Path
) -> None:
    path = write_gguf(directories(TIED), tmp_path / "model.gguf", quantised={"token_embd.weight": "Q8_0"})
    with opened(path, runtime, dtype="bfloat16") as llm:
        assert set(llm.engine.compiled.weight_formats) == {EMBEDDINGS}
        expected = text_logits(llm.engine, TEXT)
    with opened(path, runtime, dtype="bfloat16", embedding_dtype="float32") as llm:
        assert set(llm.engine.compiled.weight_formats) == {f"{EMBEDDINGS}@bfloat16"}
    with opened(path, runtime, dtype="bfloat16", lm_head_dtype="float32") as llm:
        assert llm.engine.compiled.weight_formats == {}
        found = text_logits(llm.engine, TEXT)
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_an_adjusted_step_has_the_same_head(directories: Directories, runtime: Runtime) -> None:
    with opened(directories(TIED), runtime, dtype="bfloat16", lm_head_dtype="float32") as llm:
        plain = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        adjusted = dataclasses.replace(plain, logprobs=1, repetition_penalty=1.0001)
        answers = [
            llm.generate([{"prompt_token_ids": TEXT[:8]}], params)[0].outputs[0].token_ids
            for params in (plain, adjusted)
        ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lm_head_dtype": "int8"}, "lm_head_dtype should be one of float32, bfloat16, float16, got 'int8'"),
        ({"embedding_dtype": "fp64"}, "embedding_dtype should be one of float32, bfloat16, float16"),
        ({"lm_head_dtype": "float32", "lm_head_quantization": "int8"}, "Leave one of them out"),
    ],
)
def test_what_is_refused_is_one_sentence(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        EngineConfig(**options)
    assert "\n" not in str(caught.value)


def test_a_format_of_all_weights_leaves_the_head_dense(directories: Directories, runtime: Runtime) -> None:
    config = EngineConfig(device="numpy", quantization="int8", lm_head_dtype="float32", fallback="allow")
    compiled = compile_model(runtime, directories(UNTIED), config)
    assert HEAD not in compiled.weight_formats
    assert "model.layers.0.self_attn.q_proj.weight" in compiled.weight_formats
