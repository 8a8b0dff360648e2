"""What drafts win where they are right, and cost where they are not: engines with and without them in turns, one
request at a time.

make bench
python -m tests.bench.bench_speculation Qwen2-0.5B   # random weights in a model's shapes; a draft model, too
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from aethermind import LLM, RequestOutput, Runtime, SamplingParams
from aethermind.checkpoint.dummy import DummyCheckpoint
from aethermind.engine.loading.loader import compile_model

NUM_TOKENS = 128
KINDS = ("repeats", "random", "misleading")
NUM_DRAFT_LAYERS = 2


def text(kind: str) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
    """A prompt, how to go on, and options: an answer that repeats, one without any match, one with only wrong ones."""
    random = Random(3)
    if kind == "repeats":
        return [random.randrange(1000) for _ in range(16)] * 12, {"temperature": 0.0}, {}
    if kind == "random":
        return [random.randrange(2000) for _ in range(192)], {"temperature": 1.0, "seed": 5}, {}
    allowed = list(range(40))
    return random.choices(allowed, k=192), {"allowed_token_ids": allowed, "seed": 5}, {"prompt_lookup_min": 1}


def speed(output: RequestOutput) -> float:
    metrics = output.metrics
    assert metrics.first_token_s is not None
    assert metrics.finished_s is not None
    return (NUM_TOKENS - 1) / (metrics.finished_s - metrics.first_token_s)


def compare(
    model: str,
    name: str,
    prompt: list[int],
    params: dict[str, Any],
    drafts: dict[str, Any],
    num_rounds: int,
    **more: Any,
) -> None:
    """Print tokens per second of both, and the median of their ratios. The first round is for warming up."""
    options = {"max_model_len": 1024, "max_num_seqs": 1, "enable_prefix_caching": False, **more}
    wanted = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **params)
    speeds: list[tuple[float, float]] = []
    with LLM(model, **options) as plain, LLM(model, **options, **drafts) as drafting:
        for number in range(1 + num_rounds):
            outputs = {
                llm: llm.generate({"prompt_token_ids": prompt}, wanted)[0] for llm in in_turns(number, plain, drafting)
            }
            speeds.append((speed(outputs[plain]), speed(outputs[drafting])))
    ratios = sorted(drafted / alone for alone, drafted in speeds[1:])
    alone, drafted = (statistics.median(column) for column in zip(*speeds[1:], strict=True))
    low, middle, high = (f"{ratios[num_rounds * quarter // 4]:.3f}" for quarter in (1, 2, 3))
    metrics = outputs[drafting].metrics
    print(
        f"{Path(model).name} {name}: {alone:.1f} tokens/s, {drafted:.1f} with drafts; {middle} × in the median of "
        f"{num_rounds} rounds ({low} to {high} in half of them); {metrics.num_accepted_tokens} of "
        f"{metrics.num_draft_tokens} drafts were right",
        flush=True,
    )


def in_turns(number: int, plain: LLM, drafting: LLM) -> tuple[LLM, LLM]:
    """Who is first changes from round to round."""
    return (drafting, plain) if number % 2 else (plain, drafting)


def compare_lookup(model: str, kind: str, num_rounds: int, **more: Any) -> None:
    prompt, params, options = text(kind)
    compare(model, kind, prompt, params, {"speculative_method": "prompt_lookup", **options}, num_rounds, **more)


def compare_draft(model: str, num_rounds: int, *, is_right: bool, **more: Any) -> None:
    """The first layers of a model draft for all of them: random weights are the same in both, layer by layer.

    Where drafts are to be right, the other layers add nothing, at no less work; else there is nothing to agree about.
    """
    with tempfile.TemporaryDirectory() as folder:
        draft = shutil.copytree(model, Path(folder) / "draft")
        config = json.loads((draft / "config.json").read_text())
        config["num_hidden_layers"] = config["max_window_layers"] = NUM_DRAFT_LAYERS
        (draft / "config.json").write_text(json.dumps(config))
        own = model
        if is_right:
            own = str(shutil.copytree(model, Path(folder) / Path(model).name))
            write_weights(model, Path(own), draft)
            more["load_format"] = "auto"
        prompt, params, _ = text("random")
        drafts = {"speculative_method": "draft", "draft_model": str(draft)}
        name = f"draft model of {NUM_DRAFT_LAYERS} layers, {'right' if is_right else 'wrong'}"
        compare(own, name, prompt, params, drafts, num_rounds, **more)


def write_weights(model: str, own: Path, draft: Path) -> None:
    """Made-up weights for `own` and `draft`; layers of `own` that `draft` does not have leave their input as it is."""
    compiled = compile_model(Runtime.boot(), model, load_format="dummy")
    shapes = {name: type.shape for name, type in compiled.parameter_types.items() if name not in compiled.computed}
    source = DummyCheckpoint(shapes, "float16")
    layer = re.compile(r"layers\.(\d+)\..*(o_proj|down_proj)\.weight$")
    found = {name: source.array(name) for name in source.names}
    is_muted = {name: (match := layer.search(name)) and int(match[1]) >= NUM_DRAFT_LAYERS for name in found}
    muted = {name: np.zeros_like(values) if is_muted[name] else values for name, values in found.items()}
    save_file(muted, own / "model.safetensors")
    first = re.compile(rf"layers\.({'|'.join(map(str, range(NUM_DRAFT_LAYERS)))})\.")
    drafting = {name: values for name, values in found.items() if ".layers." not in name or first.search(name)}
    save_file(drafting, draft / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def bench_prompt_lookup(kind: str) -> None:
    """The demo model, whose steps take less than a millisecond."""
    compare_lookup("demo", kind, num_rounds=200)


if __name__ == "__main__":
    options = {"load_format": "dummy", "quantization": "int8"}
    for kind in KINDS:
        compare_lookup(sys.argv[1], kind, num_rounds=5, **options)
    for is_right in (True, False):
        compare_draft(sys.argv[1], num_rounds=5, is_right=is_right, **options)
