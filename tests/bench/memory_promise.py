"""Measures how far the estimate of a model's memory is from what it takes, for models of all architectures.

For each architecture it takes the small configuration of the conformance kit, widens it until the model takes some
hundred MB, and loads it in a process of its own with random weights, in memory or from a file, and with options that
change from setting to setting. The process fills the KV cache with whole contexts, by plain steps and by steps with
penalties and log probabilities. Its peak is the kernel's `VmHWM`, which includes the pages of libraries.

With `--cgroup DIRECTORY`, a writable memory control group, every process gets a group below it whose limit is the
estimate: one that the kernel kills is reported as killed. Otherwise the limit is set by `memory`.

    python -m tests.bench.memory_promise --settings 150 --out peaks.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from aethermind import Runtime
from aethermind.checkpoint.source import dtype_names
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.memory_estimate import MemoryPlanner
from aethermind.errors import AetherMindError
from aethermind.model.architecture import AdaptsWeights
from aethermind.testing.families import cases_of

__all__ = ["enlarged", "options_of", "plan"]

_WIDTHS = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
    "shared_intermediate_size", "num_attention_heads", "num_key_value_heads", "n_embd", "n_head", "n_inner",
    "d_model", "n_heads", "ffn_hidden_size", "vocab_size_per_layer_input", "hidden_size_per_layer_input",
    "mamba_d_ssm", "mamba_n_heads", "num_heads", "linear_num_key_heads", "linear_num_value_heads", "ffn_dim",
    "block_ff_dim", "block_dim", "conv_dim", "multiple_of",
)  # fmt: skip
_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
_TOTAL = (300 << 20, 700 << 20)
"""The peaks that are aimed at: large enough to measure 2 % of them, small enough for a shared machine."""


def enlarged(config: Mapping[str, Any], factor: int, vocab_size: int, length: int) -> dict[str, Any]:
    """A configuration whose widths are `factor` times as large, with more tokens and longer contexts."""
    found = dict(config)
    for name, value in config.items():
        if isinstance(value, dict) and name == "text_config":
            found[name] = enlarged(value, factor, vocab_size, length)
        elif name in _WIDTHS and isinstance(value, int) and value > 1:
            found[name] = value * factor
        elif name in _POSITIONS:
            found[name] = max(value, length)
    if "vocab_size" in found:
        found["vocab_size"] = vocab_size
    return found


def options_of(number: int) -> dict[str, Any]:
    """Engine options that differ from setting to setting."""
    choose = random.Random(number).choice
    dtype = choose(["float32", "bfloat16", "float16"])
    return {
        "device": "cpu",
        "dtype": dtype,
        "quantization": choose([None, None, "int8", "int4"]),
        "kv_cache_dtype": choose(["auto", "auto", "int8"]),
        "max_num_seqs": choose([1, 4, 16]),
        "max_num_batched_tokens": choose([128, 256, 512]),
        "block_size": choose([16, 32]),
        "max_model_len": choose([256, 512]),
        "load_format": "dummy",
        "fallback": "allow",
    }


def plan(runtime: Runtime, directory: Path, options: Mapping[str, Any]) -> int:
    """The estimate of a model in bytes, from its configuration alone."""
    compiled = compile_model(runtime, directory, EngineConfig(**options))
    return MemoryPlanner(compiled).estimate().device_bytes


def write_weights(runtime: Runtime, directory: Path, options: dict[str, Any], stored: str) -> bool:
    """Write random weights in a dtype of safetensors, if the model reads its checkpoint without another layout."""
    compiled = compile_model(runtime, directory, EngineConfig(**options))
    if isinstance(compiled.model, AdaptsWeights):
        return False
    dtype = dtype_names()[stored]
    types = {name: type for name, type in compiled.parameter_types.items() if name not in compiled.computed}
    header, end = {}, 0
    for name, type in types.items():
        shape = [dim for dim in type.shape if isinstance(dim, int)]
        begin, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    values = (np.random.default_rng(0).standard_normal(1_048_573, np.float32) * 0.02).astype(dtype).tobytes()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(values)):
            file.write(values[: end - begin])
    return True


def settings(runtime: Runtime, root: Path, count: int) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Models and options, the architectures in turn; those that cannot be enlarged are left out."""
    architectures = [name for name in runtime.architectures.names() if cases_of(runtime, name)]
    made = 0
    for number in range(3 * count):
        name = architectures[number % len(architectures)]
        if made == count:
            return
        cases = cases_of(runtime, name)
        case, options = cases[number // len(architectures) % len(cases)], options_of(number)
        directory = root / f"{number}"
        directory.mkdir()
        has_latents = "kv_lora_rank" in case.config
        num_tokens = options["max_model_len"] * random.Random(number).choice([1, 2])
        options |= {"num_kv_blocks": max(8, num_tokens // options["block_size"])}
        options |= {"tokenizer": str(runtime.models.locate("demo"))}
        options |= {"kv_cache_dtype": "auto"} if has_latents else {}
        for factor in (16, 24, 32, 48, 64):
            config = enlarged(case.config, factor, 16384 + 2048 * (number % 7), 4096)
            config = {"architectures": [name], **config}
            config = config if case.rewrite_config is None else case.rewrite_config(config)
            (directory / "config.json").write_text(json.dumps(config))
            try:
                total = plan(runtime, directory, options)
            except (AetherMindError, ValueError, KeyError, TypeError, AssertionError) as error:
                print(f"left out: {case} × {factor}: {error}"[:200], file=sys.stderr)
                continue
            if total >= _TOTAL[0]:
                break
        else:
            total = 0
        if not _TOTAL[0] <= total <= _TOTAL[1]:
            shutil.rmtree(directory)
            continue
        made += 1
        if number % 3 == 1 and write_weights(runtime, directory, options, ("BF16", "F32", "F16")[number // 3 % 3]):
            options |= {"load_format": "auto", "weight_cache": 0.0}
        yield f"{name}/{case}", directory, options


def run_child(directory: str, options: dict[str, Any]) -> None:
    """Load a model, fill its KV cache twice, and print the estimate and the peak."""
    from aethermind import LLM, SamplingParams

    llm = LLM(directory, **options)
    compiled, estimate = llm.engine.compiled, llm.engine.parts.memory
    vocab, length = compiled.model.config.vocab_size, compiled.max_model_len
    rng = random.Random(1)

    def prompt(size: int) -> dict[str, list[int]]:
        return {"prompt_token_ids": [rng.randrange(5, vocab) for _ in range(size)]}

    if compiled.generates:
        for extra in ({}, {"repetition_penalty": 1.1, "logprobs": 2}):
            params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, **extra)
            num_prompts = max(1, -(-compiled.num_kv_blocks * compiled.cache_spec.block_size // length))
            for _ in range(num_prompts):
                llm.generate([prompt(length - 2)], params)
            llm.generate([prompt(16) for _ in range(compiled.config.max_num_seqs)], params)
    else:
        llm.embed([prompt(length)])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    record = {"parts": dict(estimate.device), "estimate": estimate.device_bytes, "peak": peak}
    record["resident"] = {name: int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile")}
    print("RESULT " + json.dumps(record))


def measure(directory: Path, options: dict[str, Any], limit: int, cgroup: Path | None) -> dict[str, Any]:
    """Run a child under a limit; `error` is what it says, or `killed`."""
    options = options if cgroup else {**options, "memory": str(limit)}
    command = [sys.executable, "-m", "tests.bench.memory_promise", "--child", str(directory), json.dumps(options)]
    if cgroup is None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        group = cgroup / f"aethermind-{os.getpid()}"
        group.mkdir()
        is_v1 = (group / "memory.limit_in_bytes").exists()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit))

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=enter)
        finally:
            group.rmdir()
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        return found
    return {"error": "killed" if done.returncode == -9 else done.stderr.strip().splitlines()[-1:]}


def _words(options: Mapping[str, Any]) -> str:
    hidden = ("device", "fallback", "tokenizer", "block_size", "weight_cache")
    return ", ".join(f"{name} {value}" for name, value in options.items() if name not in hidden and value is not None)


def main() -> None:
    """Measure settings, and print one line for each and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=150)
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child[0], json.loads(arguments.child[1]))
        return
    records = []
    runtime = Runtime.boot()
    root = Path(tempfile.mkdtemp())
    try:
        for name, directory, options in settings(runtime, root, arguments.settings):
            found = measure(directory, options, plan(runtime, directory, options), arguments.cgroup)
            records.append({"name": name, "options": options, **found})
            if "error" in found:
                print(f"{name}: {found['error']}", flush=True)
            else:
                error = found["estimate"] / found["peak"] - 1
                print(f"{name:50} {found['peak'] / 1e6:7.1f} MB, estimated {error:+.1%} {_words(options)}", flush=True)
            shutil.rmtree(directory)
    finally:
        shutil.rmtree(root)
        if arguments.out:
            arguments.out.write_text(json.dumps(records, indent=1))
    errors = sorted(abs(one["estimate"] / one["peak"] - 1) for one in records if "peak" in one)
    num_failed = sum("error" in one for one in records)
    if not errors:
        raise SystemExit(f"{num_failed} settings failed")
    within = sum(error <= 0.05 for error in errors)
    print(
        f"{len(errors)} settings: median {median(errors):.1%}, largest {errors[-1]:.1%}, {within} within 5 %, "
        f"{sum(error <= 0.02 for error in errors)} within 2 %, {num_failed} failed"
    )


if __name__ == "__main__":
    main()
