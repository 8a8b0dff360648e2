"""Converted models equal transformers' whose cache gives readers their source's keys and values."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import AetherMindError, ConfigError
from aethermind.server import Limits, bind, running
from aethermind_sharedkv.convert import convert, measure, open_model, windows

RUNTIME = Runtime.boot()
DEMO = RUNTIME.models.locate("demo")
TEXT = np.random.default_rng(7).integers(5, 250, 40).tolist()
SIZES = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}


class SharingCache(transformers.DynamicCache):
    """Gives readers what their source has cached."""

    def __init__(self, sources: Mapping[int, int]) -> None:
        super().__init__()
        self.sources = sources

    def update(self, keys: Any, values: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        own = super().update(keys, values, layer_idx, *args, **kwargs)
        if layer_idx not in self.sources:
            return own
        source = self.layers[self.sources[layer_idx]]
        return source.keys, source.values


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def written(kind: str) -> Path:
        config, model_class = KINDS[kind]
        torch.manual_seed(1)
        model = model_class(config(**SIZES))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        for path in DEMO.glob("tokenizer*"):
            shutil.copy(path, folder)
        return folder

    return written


def log_probabilities(original: Path, converted: Path, sources: Mapping[int, int], ids: list[int]) -> Any:
    """Those of the original in transformers, with the converted parameters and a cache that shares, [T, V]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    stored = safetensors.torch.load_file(converted / "model.safetensors")
    assert not model.load_state_dict(stored, strict=False).unexpected_keys
    with torch.no_grad():
        logits = model(torch.tensor([ids]), past_key_values=SharingCache(sources)).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("sources", [{1: 0}, {2: 1}, {1: 0, 2: 0}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees_with_transformers(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    kind: str,
    sources: dict[int, int],
    is_fitted: bool,
    device: str,
) -> None:
    original, converted = checkpoint(kind), tmp_path / "converted"
    with open_model(original, device=device, runtime=RUNTIME) as llm:
        convert(original, converted, sources, llm, [TEXT[::-1]] if is_fitted else [])
    names = safetensors.torch.load_file(converted / "model.safetensors").keys()
    readers = {name.split(".")[2] for name in names if name.endswith("q_proj.weight")}
    assert readers - {name.split(".")[2] for name in names if name.endswith("k_proj.weight")} == set(map(str, sources))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=5)
    with LLM(converted, device=device, block_size=4, max_num_batched_tokens=16, runtime=RUNTIME) as llm:
        (output,) = llm.generate({"prompt_token_ids": TEXT}, params)
        assert llm.info.kv_cache_bytes / llm.info.num_kv_blocks == 4 * 2 * 2 * 8 * 4 * (3 - len(sources))
    (answer,) = output.outputs
    expected = log_probabilities(original, converted, sources, [*TEXT, *answer.token_ids])
    found = [*output.prompt_logprobs[1:], *answer.logprobs]
    for row, favourites in zip(expected, found, strict=False):
        for token_id, one in favourites.items():
            assert abs(one.logprob - row[token_id].item()) < 1e-3


def test_fitting_recovers_quality_that_sharing_loses(tmp_path: Path) -> None:
    with open_model(DEMO, device="cpu", runtime=RUNTIME) as llm:
        text, *lessons = windows(llm, None, 1024)
        before = measure(llm, [text])
        convert(DEMO, tmp_path / "plain", {1: 0}, None, [])
        convert(DEMO, tmp_path / "fitted", {1: 0}, llm, lessons)
    found = []
    for name in ("plain", "fitted"):
        with open_model(tmp_path / name, device="cpu", runtime=RUNTIME) as llm:
            found.append(measure(llm, [text]))
    plain, fitted = found
    lost, left = (np.log(each.perplexity / before.perplexity) for each in (plain, fitted))
    assert 0 < left < 0.7 * lost
    assert plain.agreement(before) < fitted.agreement(before) < 1.0


def test_the_command_converts_and_the_model_is_served(tmp_path: Path) -> None:
    target = tmp_path / "shared"
    command = [sys.executable, "-m", "aethermind", "share-kv", "demo", str(target)]
    command += ["--reuse", "3:2", "--tokens", "128", "--fit", "256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "takes 75% of that of demo" in done.stdout
    assert json.loads((target / "config.json").read_text())["kv_sources"] == [0, 1, 2, 2]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "exists; name a directory that does not" in again.stderr
    body = {"model": "shared", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    with LLM(target, device="cpu", runtime=RUNTIME) as llm:
        (output,) = llm.generate(body["prompt"], SamplingParams(temperature=0.0, max_tokens=8))
        with served(llm) as address:
            response = httpx.post(f"{address}/v1/completions", json=body, timeout=300)
    assert response.json()["choices"][0]["text"] == output.outputs[0].text


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({1: 1, 2: 3}, "cannot read the keys and values of layer 3"),
        ({3: 0}, "kv_sources should be a list of 4"),
        ({1: 0, 2: 1}, "cannot read the keys and values of layer 1"),
        ({1: -1}, "cannot read the keys and values of layer -1"),
    ],
    ids=str,
)
def test_layers_that_cannot_share_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path, sources: dict[int, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(checkpoint("llama"), tmp_path / "converted", sources, None, [])


def test_other_models_are_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint("llama"), tmp_path / "other")
    raw = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**raw, "architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(AetherMindError, match="name a Qwen2ForCausalLM or a LlamaForCausalLM"):
        convert(other, tmp_path / "converted", {1: 0}, None, [])


@contextmanager
def served(llm: LLM) -> Iterator[str]:
    """The address of a server in its own thread."""
    is_up, loops, stop = threading.Event(), [], asyncio.Event()

    async def serve() -> None:
        async with running({"shared": llm}, listening, limits=Limits()):
            loops.append(asyncio.get_running_loop())
            is_up.set()
            await stop.wait()

    with bind("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            assert is_up.wait(300)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join()
