"""A model that is closed or dropped gives its memory back at once, without the garbage collector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.adapters import linear_shapes, write_adapter

from aethermind import Runtime

MIB = 1 << 20
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 24000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

PROGRAM = """
import asyncio, gc, json, sys
from pathlib import Path
from aethermind import LLM, AsyncEngine, SamplingParams
from aethermind.errors import AetherMindError
from aethermind.engine.weight_cache import WeightCache, WeightFolder

WeightFolder.needs_huge_pages, WeightCache.min_bytes = False, 1 << 20
model, options, num_more = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))

def load():
    return LLM(model, dtype="float32", max_model_len=256, num_kv_blocks=256, **options)

def use(llm):
    adapter = next(iter(options.get("adapters", {})), None)
    llm.generate([{"prompt_token_ids": [*range(100)]}, {"prompt_token_ids": [*range(9)] * 9}], PARAMS, adapter=adapter)
    llm.embed({"prompt_token_ids": [1, 2, 3]})
    with llm.hooks.on("*", lambda *_: None):
        llm.generate({"prompt_token_ids": [4, 5]}, PARAMS)
    if "draft_model" not in options:
        list(llm.stream({"prompt_token_ids": [7, 8]}, SamplingParams(max_tokens=4, n=2, prompt_logprobs=0)))
    asyncio.run(use_async(llm.engine))

async def use_async(engine):
    async with AsyncEngine(engine) as shared:
        async for output in shared.generate({"prompt_token_ids": [1, 2, 3]}, PARAMS):
            pass

def measured(end):
    before = status("VmRSS")
    kept = [load()]
    use(kept[0])
    loaded = status("VmRSS")
    end(kept)
    return before, loaded, status("VmRSS"), kept

def by_with(kept):
    with kept[0] as llm:
        use(llm)

first = load()
use(first)
first.close()
gc.collect()
gc.disable()
found, still_there = {}, []
for name, end in {"close": lambda kept: kept[0].close(), "with": by_with, "del": lambda kept: kept.clear()}.items():
    *found[name], kept = measured(end)
    for llm in kept:
        still_there.append(llm)
        try:
            llm.generate("hi")
        except AetherMindError as error:
            assert "was closed" in str(error)
        else:
            raise AssertionError("it answers")
peaks = []
for _ in range(num_more):
    Path("/proc/self/clear_refs").write_text("5")
    llm = load()
    use(llm)
    llm.close()
    peaks.append(status("VmHWM"))
json.dump([found, peaks], sys.stdout)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say what a process holds"
)


@pytest.fixture(scope="module")
def demo() -> Path:
    return Runtime.boot().open_source("demo").path


@pytest.fixture(scope="module")
def empty_model(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    """The shapes of a model of 80 MB in float32, without weights."""
    path = tmp_path_factory.mktemp("empty")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, path / name)
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, empty_model: Path) -> Path:
    """The same with weights in a file."""
    path = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(empty_model, path)
    hidden, inner = 512, 1024
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (24000, hidden), "model.norm.weight": (hidden,)}
    for layer in range(4):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{prefix}.self_attn.{name}_proj.bias": (hidden,) for name in "qkv"}
        shapes |= {f"{prefix}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {f"{prefix}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    block = (np.random.default_rng(0).standard_normal(99991) * 0.02).astype(ml_dtypes.bfloat16)
    save_file({name: np.resize(block, shape) for name, shape in shapes.items()}, path / "model.safetensors")
    return path


def check(model: Path, options: dict[str, Any], home: Path, num_more: int = 0) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model), json.dumps(options), str(num_more)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    found, peaks = json.loads(result.stdout)
    assert found.keys() == {"close", "with", "del"}
    for name, (before, loaded, after) in found.items():
        assert loaded - before > 40 * MIB, (name, "it holds too little to be seen")
        assert loaded - after >= 0.9 * (loaded - before), (name, *(one // MIB for one in (before, loaded, after)))
    assert len(peaks) == num_more
    assert all(peak <= 1.05 * peaks[0] for peak in peaks), [peak // MIB for peak in peaks]


@pytest.mark.parametrize("name", ["numpy", "cpu", "sim"])
def test_closed_models_free_their_memory_and_ten_in_turn_need_no_more_than_one(
    name: str, empty_model: Path, tmp_path: Path
) -> None:
    check(empty_model, {"device": name, "load_format": "dummy"}, tmp_path, num_more=10)


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_mapped_files_are_unmapped(name: str, model: Path, tmp_path: Path) -> None:
    """Those of the checkpoint, and on the CPU of the packed weights, which the first model writes when it is closed."""
    check(model, {"device": name}, tmp_path)
    assert name != "cpu" or len([*(tmp_path / "aethermind" / "weights").iterdir()]) == 1


def test_memory_of_adapters_drafts_swapped_blocks_and_stores_is_freed(empty_model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", linear_shapes(CONFIG), rank=64, size=0.5)
    options = {
        "device": "cpu",
        "load_format": "dummy",
        "quantization": "int8",
        "swap_space": 0.1,
        "kv_store": "host:64MiB",
    }
    check(empty_model, options | {"adapters": {"a": str(adapter)}}, tmp_path)
    check(empty_model, options | {"speculative_method": "draft", "draft_model": str(empty_model)}, tmp_path)
