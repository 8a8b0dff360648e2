"""models: facts of good models, errors of broken ones, and estimates of memory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO, copy_demo

from aethermind import LLM, Runtime
from aethermind.cli.models import estimate_memory
from aethermind.engine.config import EngineConfig


@pytest.fixture(autouse=True)
def _process_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests grows from one estimate to the next."""
    monkeypatch.setattr("aethermind.engine.loading.memory_estimate.resident_bytes", lambda: 50_000_000)


def listed(invoke: Any, *args: str) -> list[dict[str, Any]]:
    result = invoke("models", *args, "--json")
    assert result.exit_code == 0, result.output
    records: list[dict[str, Any]] = json.loads(result.stdout)["models"]
    return records


def test_installed_models(invoke: Any) -> None:
    (demo,) = (record for record in listed(invoke) if record["name"] == "demo")
    config = json.loads((DEMO / "config.json").read_text())
    assert Path(demo["path"]) == DEMO
    assert demo["architecture"] == config["architectures"][0]
    assert demo["context_length"] == config["max_position_embeddings"]
    assert demo["size_bytes"] == (DEMO / "model.safetensors").stat().st_size
    assert demo["size_bytes"] > 2 * demo["parameters"] > 0.99 * demo["size_bytes"]
    assert (demo["dtype"], demo["format"], demo["error"]) == ("bfloat16", "safetensors", None)
    assert "estimate" not in demo


def test_a_directory_of_models_lists_them(invoke: Any, tmp_path: Path) -> None:
    copy_demo(tmp_path / "b")
    copy_demo(tmp_path / "a", {"max_position_embeddings": 77})
    (tmp_path / "empty").mkdir()
    records = listed(invoke, str(tmp_path), str(tmp_path / "b"))
    assert [record["name"] for record in records] == ["a", "b", "b"]
    assert [record["context_length"] for record in records] == [77, 2048, 2048]
    assert records[1] == records[2]


def test_gguf_files(invoke: Any, tmp_path: Path) -> None:
    copy_demo(tmp_path / "a")
    path = write_gguf(DEMO, tmp_path / "b.gguf")
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    options = ("--estimate", "--device", "numpy", "--max-model-len", "64")
    directory, file, broken = listed(invoke, str(tmp_path), *options)
    assert [record["name"] for record in (directory, file, broken)] == ["a", "b.gguf", "c.gguf"]
    assert (file["size_bytes"], file["format"]) == (path.stat().st_size, "gguf")
    for name in ("architecture", "parameters", "dtype", "context_length", "error"):
        assert file[name] == directory[name]
    for name in ("weight_bytes", "kv_cache_bytes", "arena_bytes", "max_model_len", "fits"):
        assert file["estimate"][name] == directory["estimate"][name]
    assert "is truncated" in broken["error"]
    assert listed(invoke, str(path), *options) == [file]


def test_broken_directories_are_listed_with_the_error(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    copy_demo(tmp_path / "garbled", files={"config.json": b"{"})
    copy_demo(tmp_path / "unknown", {"architectures": ["AbacusForCausalLM"]})
    copy_demo(tmp_path / "unfit", {"hidden_size": 7})
    copy_demo(tmp_path / "truncated", files={"model.safetensors": b"abc"})
    copy_demo(tmp_path / "weightless", files={"model.safetensors": None})
    shutil.copy(DEMO / "config.json", tmp_path / "file")
    reasons = {
        "empty": "no config.json",
        "garbled": "not valid JSON",
        "unknown": "AbacusForCausalLM",
        "unfit": "hidden_size",
        "truncated": "3 bytes",
        "weightless": "no weights",
        "file": "is a file",
    }
    paths = [str(tmp_path / name) for name in reasons]
    by_name = {record["name"]: record for record in listed(invoke, *paths, "--estimate", "--device", "numpy")}
    for name, reason in reasons.items():
        assert reason in by_name[name]["error"]
        assert ("estimate" in by_name[name]) == (name in ("truncated", "weightless")), "it takes a configuration"
    assert by_name["unknown"]["architecture"] == "AbacusForCausalLM"
    assert by_name["weightless"]["context_length"] == 2048
    result = invoke("models", *paths, str(DEMO))
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert all(reason in rows[name] for name, reason in reasons.items())
    assert "3.35 M" in rows["demo"]
    assert rows["demo"].endswith(str(DEMO))


@pytest.mark.parametrize(
    "formats",
    [{}, {"quantization": "int4"}, {"lm_head_quantization": "int8_channel"}, {"kv_cache_dtype": "int8"}],
    ids=str,
)
def test_the_estimate_equals_the_memory_that_loading_takes(
    runtime: Runtime, device: str, formats: dict[str, str]
) -> None:
    options: dict[str, Any] = {"device": device, "dtype": "float32", "max_model_len": 96, "num_kv_blocks": 9, **formats}
    options["max_num_batched_tokens"] = 96  # no more than the cache holds
    estimate = estimate_memory(runtime, DEMO, EngineConfig(**options, fallback="allow"))
    with LLM(DEMO, runtime=runtime, **options, fallback="allow") as llm:
        info = llm.info
    for name in ("device", "dtype", "max_model_len", "num_kv_blocks", "weight_bytes", "kv_cache_bytes", "arena_bytes"):
        assert estimate[name] == getattr(info, name), name
    assert [use["name"] for use in estimate["weight_formats"]] == list(info.weight_formats)
    parts = estimate["parts"]
    assert estimate["total_bytes"] == sum(parts.values())
    assert parts.get("weights", 0) + estimate["mapped_bytes"] == info.weight_bytes
    assert parts["kv_cache"] == info.kv_cache_bytes
    assert parts["workspace"] > info.arena_bytes


def test_the_estimate_needs_no_weights(invoke: Any, tmp_path: Path) -> None:
    options = ("--estimate", "--device", "numpy", "--max-model-len", "64")
    bare = copy_demo(tmp_path / "bare", files={"model.safetensors": None})
    whole, without = listed(invoke, "demo", str(bare), *options)
    assert without["estimate"] == whole["estimate"]
    assert "no weights" in without["error"]


def test_the_estimate_takes_the_options(invoke: Any) -> None:
    args = ("demo", "--estimate", "--device", "numpy", "--dtype", "float32", "--max-model-len", "64")
    (record,) = listed(invoke, *args, "--num-kv-blocks", "3", "--block-size", "8")
    estimate = record["estimate"]
    assert (estimate["device"], estimate["dtype"], estimate["max_model_len"]) == ("numpy:0", "float32", 24)
    text = invoke("models", *args).stdout
    assert "demo takes" in text
    assert "contexts of 64 tokens" in text
    assert "1 matrix in int8: " in invoke("models", *args, "--lm-head-quantization", "int8").stdout


def test_options_that_do_not_fit_a_model_are_listed_as_its_error(invoke: Any, tmp_path: Path) -> None:
    other = copy_demo(tmp_path / "other", {"dtype": "float32", "torch_dtype": "float32"})
    options = ("--estimate", "--device", "numpy", "--max-model-len", "64", "--kv-cache-dtype", "float32")
    fits, unfit = listed(invoke, str(other), "demo", *options)
    assert fits["error"] is None
    assert "float32" in unfit["error"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--estimate", "--device", "abacus"), "abacus"),
        (("--max-model-len", "0"), "--max-model-len should be"),
        (("--estimate", "--quantization", "int5"), "int5"),
        (("--lm-head-quantization", "int5"), "int5"),
        (("demo", "--estimate", "--dtype", "bfloat61"), "Unknown dtype 'bfloat61'"),
        (("--dtype", "bfloat61"), "Unknown dtype 'bfloat61'"),
        (("demo", "--estimate", "--device", "numpy", "--dtype", "int8"), "numpy does not compute int8"),
        (("demo", "--estimate", "--device", "numpy", "--kv-cache-dtype", "float32"), "float32"),
        (("demo", "--estimate", "--device", "numpy", "--max-model-len", "10000000"), "10000000"),
        (("demo", "nosuch"), "neither an installed model (demo"),
        (("demo", ""), "A path is empty"),
    ],
)
def test_bad_options_are_one_sentence(invoke: Any, args: tuple[str, ...], word: str) -> None:
    result = invoke("models", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_models(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "")
    assert "No models are installed" in invoke("models").stdout


def test_pipes_and_link_loops_are_listed_with_the_error(invoke: Any, tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe.gguf", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    records = listed(invoke, str(pipe), str(loop), str(tmp_path))
    assert [record["name"] for record in records] == ["pipe.gguf", "loop", tmp_path.name]
    assert all(record["error"] for record in records)
    assert "not a regular file" in records[0]["error"]


def test_a_path_that_is_not_there_is_an_error(invoke: Any) -> None:
    refused = invoke("models", "./nope")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "'nope' does not exist" in refused.stderr


def test_advice_for_a_model_without_weights_names_no_flag_that_models_lacks(invoke: Any, tmp_path: Path) -> None:
    shutil.copy(DEMO / "config.json", tmp_path)
    listed = invoke("models", str(tmp_path))
    assert listed.exit_code == 0
    assert "has no weights" in listed.stdout
    assert "--load-format" not in listed.stdout


def test_a_model_that_exceeds_the_memory_is_marked(invoke: Any, tmp_path: Path) -> None:
    copy_demo(tmp_path / "large", {"num_hidden_layers": 4, "vocab_size": 1 << 30})
    options = ("--estimate", "--device", "numpy", "--max-model-len", "64")
    said = invoke("models", str(tmp_path / "large"), *options).stdout
    assert ", more than the " in said.splitlines()[-1]
    assert "more than" not in invoke("models", "demo", *options).stdout
