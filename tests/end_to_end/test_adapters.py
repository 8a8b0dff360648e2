"""Adapters against transformers: the logits and the tokens of a model whose weights have the adapter merged in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.adapters import adapt_weights, write_adapter
from transformers.pytorch_utils import Conv1D

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.loading.model_graph import GraphKind
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.request import RequestOptions
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.parity import assert_close_to, random_prompts
from aethermind.testing.families.transformers_reference import TransformersReference, outputs_of, pretrained

GPT2 = {"vocab_size": 131, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
CASES = (
    ModelCase("qwen2", "Qwen2ForCausalLM"),
    ModelCase("qwen2_tied", "Qwen2ForCausalLM", {**SMALL, "tie_word_embeddings": True}),
    ModelCase("qwen3", "Qwen3ForCausalLM", {**SMALL, "head_dim": 16}),
    ModelCase("llama", "LlamaForCausalLM"),
    ModelCase("phi3", "Phi3ForCausalLM", {**SMALL, "pad_token_id": None}),
    ModelCase("glm", "GlmForCausalLM", {**SMALL, "pad_token_id": None, "head_dim": 16}),
    ModelCase("gpt2", "GPT2LMHeadModel", GPT2),
    ModelCase("qwen2_moe", "Qwen2MoeForCausalLM", {**SMALL, "num_experts": 4, "num_experts_per_tok": 2}),
)
ATTENTION = ("q_proj", "v_proj", "qkv_proj", "c_attn")
MLP = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "c_fc", "c_proj")
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"rank": 5, "targets": (*ATTENTION, "k_proj", "o_proj", *MLP)},
    "attention": {"rank": 16, "targets": ATTENTION, "use_rslora": True, "dtype": ml_dtypes.bfloat16},
    "mlp": {"rank": 1, "targets": MLP, "dtype": np.float16},
}
NUM_TOKENS = 12


@dataclass(frozen=True)
class Compared:
    """An engine with adapters, and transformers' models that are to be the same, by adapter."""

    engine: Engine
    references: dict[str, Any]


@pytest.fixture(scope="module", params=CASES, ids=str)
def compared(
    request: pytest.FixtureRequest, device: str, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compared]:
    case: ModelCase = request.param
    root = tmp_path_factory.mktemp(case.name)
    TransformersReference().write(case, root / "model")
    modules = dict(pretrained(case.architecture, root / "model").named_modules())
    shapes = {name: tuple(one.weight.shape) for name, one in modules.items() if isinstance(one, torch.nn.Linear)}
    shapes |= {name: tuple(one.weight.shape)[::-1] for name, one in modules.items() if isinstance(one, Conv1D)}
    paths = {
        name: write_adapter(root / name, shapes, seed=seed, size=0.5, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }
    references = {name: partial(outputs_of, merged(case, root / "model", path)) for name, path in paths.items()}
    references[""] = partial(outputs_of, pretrained(case.architecture, root / "model"))
    parts = EngineParts.of(runtime, root / "model", device=device, dtype="float32", adapters=paths)
    engine = Engine(parts, runtime.open_source("demo").tokenizer())
    yield Compared(engine, references)
    engine.close()


def merged(case: ModelCase, model: Path, adapter: Path) -> Any:
    """Transformers' model with an adapter in its weights, in float64."""
    found = pretrained(case.architecture, model)
    weights = {name: parameter.detach().numpy() for name, parameter in found.named_parameters()}
    transposed = {f"{name}.weight" for name, module in found.named_modules() if isinstance(module, Conv1D)}
    changed = adapt_weights(weights, adapter, transposed)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            parameter.copy_(torch.from_numpy(changed[name]))
    return found


@pytest.mark.parametrize("name", ADAPTERS)
def test_logits(compared: Compared, name: str) -> None:
    (text,) = random_prompts(40)
    engine = compared.engine
    executor = engine.runner.executor_of(GraphKind.STEP, engine.compiled.choose_adapter(name).number)
    wanted = compared.references[name](text)
    assert_close_to(wanted, list(text_logits(engine, text, executor)))
    assert np.abs(wanted - compared.references[""](text)).max() > 0.1


def test_tokens_of_a_batch(compared: Compared) -> None:
    engine = compared.engine
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = dict(zip(compared.references, random_prompts(7, 19, 3, 30), strict=True))
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params, options=RequestOptions(adapter=name))
    found: dict[str, list[int]] = {}
    while engine.has_unfinished:
        found.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    for name, prompt in prompts.items():
        rows = compared.references[name]([*prompt, *found[name]][:-1])[len(prompt) - 1 :]
        assert found[name] == rows.argmax(axis=1).tolist(), name
