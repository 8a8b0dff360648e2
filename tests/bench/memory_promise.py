"""Measures how far the estimate of a model's memory is from what it takes, for models of all architectures.

For each architecture it takes the small configuration of the conformance kit, widens it until the model takes some
hundred MB, and loads it in a process of its own with random weights, in memory or from a file, and with options that
change from setting to setting. The process fills the KV cache with whole contexts, by plain steps and by steps with
penalties and log probabilities. Its peak is the most anonymous memory that it had, and the pages of libraries; a
control group counts the former exactly, and is charged for no page of a file that was written or read before. Pages of
the mapped checkpoint do not count, because the kernel drops them where memory is short.

With `--cgroup DIRECTORY`, a writable memory control group, every process gets a group below it whose limit is the
estimate: one that the kernel kills is reported as killed. Otherwise the limit is set by `memory`.

    python -m tests.bench.memory_promise --settings 150 --out peaks.json
    python -m tests.bench.memory_promise --plan 2000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
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
        "max_model_len": choose([256, 384]),
        "load_format": "dummy",
        "fallback": "allow",
    }


def plan(runtime: Runtime, directory: Path, options: Mapping[str, Any]) -> int:
    """The estimate of a model in bytes, from its configuration alone."""
    compiled = compile_model(runtime, directory, EngineConfig(**options))
    return MemoryPlanner(compiled).estimate().device_bytes


def write_weights(
    runtime: Runtime, directory: Path, options: dict[str, Any], stored: str, *, with_values: bool = True
) -> bool:
    """Write random weights in a dtype of safetensors, if the model reads its checkpoint without another layout.

    Without values, the file has a header and a hole of the right size.
    """
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
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if not with_values:
            file.truncate(file.tell() + end)
            return True
        values = (np.random.default_rng(0).standard_normal(1_048_573, np.float32) * 0.02).astype(dtype).tobytes()
        for begin in range(0, end, len(values)):
            file.write(values[: end - begin])
    return True


def plan_many(runtime: Runtime, count: int) -> None:
    """Plan settings of all architectures and sizes, some of them from the headers of files; print a summary."""
    seconds, totals, names, num_files = list[float](), list[int](), set[str](), 0
    architectures = [name for name in runtime.architectures.names() if cases_of(runtime, name)]
    for number in range(100 * count):
        choose = random.Random(number).choice
        name = architectures[number % len(architectures)]
        case = choose(cases_of(runtime, name))
        options = options_of(number) | {"max_num_seqs": choose([1, 16, 256]), "max_model_len": choose([256, 4096])}
        options["tokenizer"] = str(runtime.models.locate("demo"))
        config = {
            "architectures": [name],
            **enlarged(case.config, choose([1, 4, 16, 48]), choose([8192, 151936]), 4096),
        }
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            try:
                config = config if case.rewrite_config is None else case.rewrite_config(config)
                (directory / "config.json").write_text(json.dumps(config))
                plan(runtime, directory, options)
            except (AetherMindError, ValueError, KeyError, TypeError, AssertionError):
                continue  # a configuration that does not stay one when it is widened, or a format that it has not
            if choose([False, True]) and write_weights(runtime, directory, options, "BF16", with_values=False):
                options, num_files = options | {"load_format": "auto", "weight_cache": 0.0}, num_files + 1
            began = time.perf_counter()
            totals.append(plan(runtime, directory, options))
            seconds.append(time.perf_counter() - began)
            names.add(name)
        if len(totals) == count:
            break
    print(
        f"{len(totals)} settings of {len(names)} architectures planned, {num_files} of them from headers of files: "
        f"{min(totals) / 1e6:.0f} MB to {max(totals) / 1e9:.1f} GB, {median(seconds):.2f} s each, at most "
        f"{max(seconds):.1f} s"
    )


def make_setting(runtime: Runtime, directory: Path, number: int) -> tuple[str, dict[str, Any]] | None:
    """Write the model of a setting into an empty directory; returns its name and options, None if none is of the size
    that is aimed at.
    """
    architectures = [name for name in runtime.architectures.names() if cases_of(runtime, name)]
    name = architectures[number % len(architectures)]
    cases = cases_of(runtime, name)
    case, options = cases[number // len(architectures) % len(cases)], options_of(number)
    options["num_kv_blocks"] = options["max_model_len"] * random.Random(number).choice([1, 2, 4]) // 16
    options["tokenizer"] = str(runtime.models.locate("demo"))
    if "kv_lora_rank" in case.config:
        options["kv_cache_dtype"] = "auto"
    vocab_size = random.Random(number).choice([16384, 40960, 65536])
    for factor in (8, 12, 16, 20, 24, 32, 40, 48, 64):
        config = enlarged(case.config, factor, vocab_size, 4096)
        config = {"architectures": [name], **config}
        config = config if case.rewrite_config is None else case.rewrite_config(config)
        (directory / "config.json").write_text(json.dumps(config))
        try:
            total = plan(runtime, directory, options)
        except (AetherMindError, ValueError, KeyError, TypeError, AssertionError):
            continue  # a configuration that does not stay one when it is widened
        if total > _TOTAL[1]:
            return None
        stored = ("BF16", "F32", "F16")[number // 2 % 3]
        has_file = total >= _TOTAL[0] and random.Random(number + 1).random() < 0.5
        if has_file and write_weights(runtime, directory, options, stored):
            options |= {"load_format": "auto", "weight_cache": 0.0}
            total = plan(runtime, directory, options)
        if total >= _TOTAL[0]:
            return f"{number} {name}/{case}", options
        options["load_format"] = "dummy"
    return None


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
            spec, blocks = compiled.cache_spec, compiled.num_kv_blocks
            # Whole contexts at once, for steps of as many tokens as there can be.
            llm.generate([prompt(length - 2) for _ in range(max(1, -(-blocks * spec.block_size // length)))], params)
            # As many requests at once as there can be, and snapshots of recurrent states behind single blocks.
            llm.generate([prompt(8) for _ in range(max(compiled.config.max_num_seqs, spec.max_sequences))], params)
            for _ in range(min(spec.num_slots, 2 * blocks)):
                llm.generate([prompt(spec.block_size)], params)
    else:
        llm.embed([prompt(length)])
    status = _status("self")
    record = {"parts": dict(estimate.device), "estimate": estimate.device_bytes, "high_water_mark": status["VmHWM"]}
    record["libraries"] = status["RssFile"] - _mapped_bytes(directory)
    print("RESULT " + json.dumps(record))


def measure(directory: Path, options: dict[str, Any], limit: int, cgroup: Path | None) -> dict[str, Any]:
    """Run a child under a limit; `error` is what it says, or `killed`."""
    options = options if cgroup else {**options, "memory": str(limit)}
    command = [sys.executable, "-m", "tests.bench.memory_promise", "--child", str(directory), json.dumps(options)]
    group = None if cgroup is None else cgroup / f"aethermind-{os.getpid()}"
    if group is not None:
        group.mkdir()
        is_v1 = (group / "memory.limit_in_bytes").exists()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit))

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    peak = 0
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=enter
        ) as process:
            while process.poll() is None:
                status = _status(process.pid)
                peak = max(peak, status.get("RssAnon", 0) + status.get("RssShmem", 0))
                time.sleep(0.004)
            output, errors = process.communicate()
        if group is not None:
            highest = group / ("memory.max_usage_in_bytes" if is_v1 else "memory.peak")
            peak = max(peak, int(highest.read_text()) if highest.exists() else 0)
    finally:
        if group is not None:
            group.rmdir()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": "killed" if process.returncode == -9 else errors.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return {**found, "peak": peak + found.pop("libraries")}


def _status(pid: int | str) -> dict[str, int]:
    """The fields of a process's memory in bytes; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(value.split()[0]) * 1024 for name, value in pairs if name.startswith(("Rss", "Vm"))}


def _mapped_bytes(directory: str) -> int:
    """Resident pages of this process's mappings of files in a directory."""
    total, is_below = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_below = directory in line
        elif is_below and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _words(options: Mapping[str, Any]) -> str:
    hidden = ("device", "fallback", "tokenizer", "block_size", "weight_cache")
    return ", ".join(f"{name} {value}" for name, value in options.items() if name not in hidden and value is not None)


def main() -> None:
    """Measure settings, and print one line for each and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=150)
    parser.add_argument("--first", type=int, default=0, help="the number of the first setting")
    parser.add_argument("--only", type=int, help="the number of the only setting")
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plan", type=int, metavar="COUNT", help="only plan so many settings, and load none")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child[0], json.loads(arguments.child[1]))
        return
    records: list[dict[str, Any]] = []
    runtime = Runtime.boot()
    if arguments.plan:
        plan_many(runtime, arguments.plan)
        return
    numbers = (
        range(arguments.first, arguments.first + 4 * arguments.settings) if arguments.only is None else [arguments.only]
    )
    for number in numbers:
        if len(records) == arguments.settings:
            break
        with tempfile.TemporaryDirectory() as folder:
            made = make_setting(runtime, Path(folder), number)
            if made is None:
                continue
            name, options = made
            found = measure(Path(folder), options, plan(runtime, Path(folder), options), arguments.cgroup)
        records.append({"name": name, "options": options, **found})
        if "error" in found:
            print(f"{name}: {found['error']} {_words(options)}", flush=True)
        else:
            error = found["estimate"] / found["peak"] - 1
            print(f"{name:54} {found['peak'] / 1e6:7.1f} MB, estimated {error:+.1%} {_words(options)}", flush=True)
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
