"""Drafts of MTP modules are those of a float64 module, and answers do not depend on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.engine.speculative.drafting import AlwaysMost, finish
from tests.end_to_end.gguf_conversions import write_converted
from tests.qwen2.checkpoints import DEMO, write_checkpoint

import aethermind_deepseek.conformance
import aethermind_glm.conformance
import aethermind_qwen2.conformance
from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError
from aethermind.testing.families.transformers_reference import TransformersReference, pretrained

CASES = (*aethermind_qwen2.conformance.CASES, *aethermind_deepseek.conformance.CASES, *aethermind_glm.conformance.CASES)
QWEN = {
    "layers.0.": "mtp.layers.0.",
    "norm.": "mtp.norm.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "eh_proj.": "mtp.fc.",
}
DEEPSEEK = {
    "layers.0.": "model.layers.2.",
    "norm.": "model.layers.2.shared_head.norm.",
    "enorm.": "model.layers.2.enorm.",
    "hnorm.": "model.layers.2.hnorm.",
    "eh_proj.": "model.layers.2.eh_proj.",
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
OUTPUTS = ("o_proj", "out_proj", "down_proj")
DENSE_FIRST = {"first_k_dense_replace": 0, "num_nextn_predict_layers": 1}


@dataclass(frozen=True)
class Family:
    """How a family names its module, and the changes of the configuration that make a model of the module's layer."""

    names: Mapping[str, str]
    layer: Mapping[str, Any]
    norm_offset: float = 0.0


FAMILIES = {
    "qwen3_5": Family(QWEN, {"layer_types": ["full_attention"]}, 1.0),
    "qwen3_5_moe": Family(QWEN, {"layer_types": ["full_attention"]}, 1.0),
    "qwen3_next": Family(QWEN, {"layer_types": ["full_attention"]}, 1.0),
    "deepseek_v3": Family(DEEPSEEK, DENSE_FIRST),
    "glm4_moe": Family(DEEPSEEK, DENSE_FIRST),
}
PROMPTS = [[(7 * index + 11 * token) % 120 + 3 for token in range(2 + 9 * index)] for index in range(4)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
PARAMS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=3, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=4, top_k=20, repetition_penalty=1.2, max_tokens=14, ignore_eos=True),
    GREEDY,
]
OPTIONS: dict[str, Any] = {"max_model_len": 64, "num_kv_blocks": 64, "dtype": "float32", "fallback": "allow"}


@dataclass(frozen=True)
class Checkpoint:
    """A random model with a module, and the module as torch computes it in float64."""

    path: Path
    model: Any
    layer: Any
    tensors: Mapping[str, torch.Tensor]
    norm_offset: float

    def logits(self, text: Sequence[int], drafts: Sequence[int]) -> list[torch.Tensor]:
        """The module's logits for each of the drafts of a text (DeepSeek-V3, section 2.2)."""
        with torch.no_grad():
            states = self.model.model(torch.tensor([text[:-1]])).last_hidden_state[0]
            inputs, found = self._inputs(text[1:], states), []
            for draft in drafts:
                states = self.layer.model(inputs_embeds=inputs[None]).last_hidden_state[0]
                found.append(self.model.lm_head(states[-1]))
                inputs = torch.cat([inputs, self._inputs([draft], states[-1:])])
        return found

    def _inputs(self, token_ids: Sequence[int], states: torch.Tensor) -> torch.Tensor:
        embeddings = self.model.model.embed_tokens(torch.tensor(token_ids))
        both = torch.cat([self._normed(embeddings, "enorm"), self._normed(states, "hnorm")], dim=-1)
        return both @ self.tensors["eh_proj.weight"].double().T

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps).rsqrt()
        return x * scale * (self.tensors[f"{name}.weight"].double() + self.norm_offset)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    return cache(lambda name: write(name, tmp_path_factory.mktemp(name)))


def write(name: str, folder: Path) -> Checkpoint:
    """Write a model and a module in which embeddings outweigh layers, so that drafts are often right."""
    family, case = FAMILIES[name], next(one for one in CASES if one.name == name)
    case = replace(case, config={**case.config, **{key: 1 for key in family.layer if key.startswith("num_nextn")}})
    one = replace(case, config={**case.config, **family.layer, "num_hidden_layers": 1})
    path, layer_path = folder / "model", folder / "layer"
    for each, at in ((case, path), (one, layer_path)):
        TransformersReference().write(each, at)
        weights = {
            key: value * (30 if "embed_tokens" in key else 0.1 if key.rpartition(".")[0].endswith(OUTPUTS) else 1)
            for key, value in load_file(at / "model.safetensors").items()
        }
        save_file(weights, at / "model.safetensors", metadata={"format": "pt"})
    weights = load_file(path / "model.safetensors")
    own = {key.removeprefix("model."): value for key, value in load_file(layer_path / "model.safetensors").items()}
    width = case.config["hidden_size"]
    torch.manual_seed(1)
    own["eh_proj.weight"] = torch.cat([torch.eye(width), 0.03 * torch.randn(width, width)], dim=1)
    for norm in ("enorm.weight", "hnorm.weight"):
        own[norm] = 1 - family.norm_offset + 0.1 * torch.randn(width)
    renamed = {
        new + key.removeprefix(old): value
        for key, value in own.items()
        for old, new in family.names.items()
        if key.startswith(old)
    }
    save_file({**weights, **renamed}, path / "model.safetensors", metadata={"format": "pt"})
    for file in TOKENIZER:
        shutil.copy(DEMO / file, path)
    model, layer = (pretrained(case.architecture, at) for at in (path, layer_path))
    return Checkpoint(path, model, layer, own, family.norm_offset)


def open_engine(runtime: Runtime, model: str | Path, **options: Any) -> Engine:
    parts = EngineParts.of(runtime, model, **{"device": "cpu", **OPTIONS, **options})
    return Engine(parts, parts.compiled.source.tokenizer())


def open_drafted(runtime: Runtime, checkpoint: Checkpoint, **options: Any) -> Engine:
    """An engine that drafts at every opportunity."""
    given = {"speculative_method": "mtp", "num_speculative_tokens": 3, **options}
    engine = open_engine(runtime, checkpoint.path, **given)
    assert engine.speculator is not None
    engine.speculator._controller = AlwaysMost(given["num_speculative_tokens"])
    return engine


def answers(engine: Engine) -> list[list[int]]:
    for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(index), prompt, params)
    finished = finish(engine)
    return [finished[str(index)].outputs[0].token_ids for index in range(len(PROMPTS))]


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_are_those_of_the_module_in_float64(
    runtime: Runtime, checkpoint: Callable[[str], Checkpoint], name: str
) -> None:
    model = checkpoint(name)
    engine = open_drafted(runtime, model, max_num_batched_tokens=8, max_num_seqs=4)
    assert engine.speculator is not None
    propose, num_compared = engine.speculator._proposer.propose, 0

    def compared(requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        nonlocal num_compared
        proposed = propose(requests, limits)
        for request, drafts in zip(requests, proposed, strict=True):
            if request.params.temperature == 0:
                for draft, logits in zip(drafts, model.logits(request.all_token_ids, drafts), strict=True):
                    assert logits[draft] >= logits.max() - 1e-4 * logits.abs().max()
                    num_compared += 1
        return proposed

    engine.speculator._proposer.propose = compared  # type: ignore[method-assign]
    answers(engine)
    assert num_compared > 20


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_do_not_depend_on_drafts(runtime: Runtime, checkpoint: Callable[[str], Checkpoint], name: str) -> None:
    model = checkpoint(name)
    expected = answers(open_engine(runtime, model.path))
    options: list[dict[str, Any]] = [
        {},
        {"max_num_batched_tokens": 9, "max_num_seqs": 3, "block_size": 4},
        {"num_kv_blocks": 11, "block_size": 8, "enable_prefix_caching": False, "max_num_batched_tokens": 4},
        {"num_kv_blocks": 16, "block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 4},
        {"device": "sim", "num_speculative_tokens": 1},
    ]
    for one in options:
        engine = open_drafted(runtime, model, **one)
        assert answers(engine) == expected, one
        assert engine.speculator is not None
        assert 0 < engine.speculator.num_accepted_tokens < engine.speculator.num_draft_tokens, one
        assert answers(engine) == expected, "with prefixes from the cache"
        assert engine.speculator._proposer.cache.num_sequences == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_file_has_the_module_of_its_original(
    runtime: Runtime, checkpoint: Callable[[str], Checkpoint], tmp_path: Path, name: str
) -> None:
    """The converter stores the module behind the layers of the model, with names of DeepSeek's module."""
    model, layers = checkpoint(name), 2
    config = json.loads((model.path / "config.json").read_text())
    config["num_hidden_layers"] = layers + 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    for file in TOKENIZER:
        shutil.copy(DEMO / file, tmp_path)
    names = {FAMILIES[name].names[part]: new for part, new in DEEPSEEK.items()}
    renamed = {
        next((new + key.removeprefix(old) for old, new in names.items() if key.startswith(old)), key): value
        for key, value in load_file(model.path / "model.safetensors").items()
    }
    save_file(renamed, tmp_path / "model.safetensors")
    path = write_converted(tmp_path, tmp_path / "model.gguf", changed={"nextn_predict_layers": 1})
    counts = []
    for at in (model, replace(model, path=path)):
        engine = open_drafted(runtime, at)
        counts.append((answers(engine), engine.speculator.num_draft_tokens, engine.speculator.num_accepted_tokens))
    assert counts[0] == counts[1]


def test_a_checkpoint_without_a_module_is_refused_in_one_sentence(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Qwen2ForCausalLM .* has no module for multi-token prediction"):
        open_engine(runtime, "demo", speculative_method="mtp")
    case = next(one for one in CASES if one.name == "qwen3_5")
    write_checkpoint(case, tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"has no weights of a module for multi-token .* another spec"):
        open_engine(runtime, tmp_path, speculative_method="mtp")
