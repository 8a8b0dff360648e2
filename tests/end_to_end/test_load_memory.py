"""Loading takes little more memory than what is loaded: weights go from the mapped file to their place in pieces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from aethermind import Runtime

MIB = 1 << 20
HIDDEN, INTERMEDIATE, LAYERS, HEADS, VOCAB = 512, 2304, 8, 8, 64000

PROGRAM = """
import ctypes, json, re, sys
from pathlib import Path
from aethermind.engine.observation.profiler import measure_memory
from aethermind.engine.weight_cache import WeightFolder
from aethermind.llm import LLM
from aethermind.sampling.params import SamplingParams

def status(*names):
    text = Path("/proc/self/status").read_text()
    return [int(re.search(rf"{name}:\\s+(\\d+) kB", text)[1]) << 10 for name in names]

def mapped():
    # Of the checkpoint: what libraries map meanwhile is not asked.
    name = sys.argv[1] + "/model.safetensors"
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:  # the addresses of a mapping
            is_ours = line.endswith(name)
        elif is_ours and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found

PR_SET_THP_DISABLE = 41  # whether the system has a huge page at hand is not asked, and one is a lot here
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
WeightFolder.needs_huge_pages = False
LLM(sys.argv[2], device="cpu").close()  # what any model needs once
before = status("VmRSS", "RssAnon")
anonymous, seen = [], []
llm = LLM(
    sys.argv[1], device="cpu", dtype="bfloat16", quantization=sys.argv[3], max_model_len=256,
    on_progress=lambda *_: (anonymous.extend(status("RssAnon")), seen.append(mapped())),
)
loaded = status("RssAnon", "VmHWM")
use = measure_memory("loaded", llm.engine.compiled, llm.engine.runner)
llm.generate({"prompt_token_ids": [*range(200)]}, SamplingParams(max_tokens=4, ignore_eos=True))
(peak,) = status("VmHWM")
json.dump([before, max(anonymous), loaded, use.categories(), peak, max(seen), mapped()], sys.stdout)
"""


@pytest.fixture(scope="module")
def demo() -> Path:
    return Runtime.boot().open_source("demo").path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    """A model of 140 MB with matrices a little larger than a huge page, and a tied embedding of 65 MB."""
    path = tmp_path_factory.mktemp("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, path / name)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config))
    block = (np.random.default_rng(0).standard_normal(99991) * 0.02).astype(ml_dtypes.bfloat16)
    square, wide, tall = (HIDDEN, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": square for name in "qkvo"}
        shapes |= {f"{prefix}.self_attn.{name}_proj.bias": (HIDDEN,) for name in "qkv"}
        shapes |= {f"{prefix}.mlp.{name}_proj.weight": wide for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = tall
        shapes |= {f"{prefix}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    save_file({name: np.resize(block, shape) for name, shape in shapes.items()}, path / "model.safetensors")
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process holds")
@pytest.mark.parametrize("quantization", ["dense", "int8"])
def test_peak_memory_of_loading_is_little_more_than_the_weights(
    directory: Path, demo: Path, quantization: str, tmp_path: Path
) -> None:
    """Though the packed weights are written to disk meanwhile."""
    command = [sys.executable, "-c", PROGRAM, str(directory), str(demo), quantization]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert len([*(tmp_path / "aethermind" / "weights").iterdir()]) == 1
    (rss, anonymous), greatest, (kept, load_peak), use, peak, most_mapped, mapped = json.loads(result.stdout)
    packed = use["packed_weights"]
    assert packed > 60 * MIB
    assert greatest <= 1.15 * kept
    assert kept - anonymous <= 1.15 * packed + 16 * MIB
    assert load_peak - rss <= 1.15 * packed + 24 * MIB, "pages of the file stay in memory while it is packed"
    assert peak <= 1.1 * (sum(use.values()) - use["other"]) + 120 * MIB
    assert most_mapped > 0, "the file is not found among what is mapped"
    assert mapped <= 4 * MIB, "rows of a tied embedding are read out of the head, not out of the file"
