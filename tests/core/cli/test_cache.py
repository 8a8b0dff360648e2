"""cache: listing by kind, and deletion after confirmation."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.models import copy_demo

from aethermind import LLM, Runtime
from aethermind.checkpoint import file_digest
from aethermind.checkpoint.file_digest import digest_files
from aethermind.engine.weight_cache import WeightCache, WeightFolder
from aethermind.plugins import sandbox_load
from aethermind.runtime import isolated_devices
from aethermind.text import tokenizer_cache, tokenizer_files

SIZES = {"weights/a.safetensors": 3_000_000, "tokenizers/b.bpe": 500, "digests/c": 32, "probes.json": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "aethermind"


@pytest.fixture
def filled(cache: Path) -> Path:
    """A file of each kind, used a day apart from the first of 2026, and files of somebody else."""
    for day, (name, size) in enumerate({**SIZES, "weights/notes.txt": 1, "own/d": 1}.items()):
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (0, 1767225600 + 86400 * day))
    return cache


def files(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}


def test_kinds_are_listed_with_size_and_last_use(invoke: Any, filled: Path) -> None:
    listed = json.loads(invoke("cache", "list", "--json").stdout)
    assert listed["directory"] == str(filled)
    assert [(one["kind"], one["num_files"], one["size_bytes"]) for one in listed["kinds"]] == [
        ("weights", 1, 3_000_000),
        ("tokenizers", 1, 500),
        ("digests", 1, 32),
        ("probes", 1, 2),
    ]
    assert [one["last_used"][:10] for one in listed["kinds"]] == [f"2026-01-0{day}" for day in (1, 2, 3, 4)]
    lines = invoke("cache", "list").stdout.splitlines()
    assert str(filled) in lines[0]
    assert "3.00 MB" in next(line for line in lines if "weights" in line)


def test_an_empty_cache_is_no_error(invoke: Any, cache: Path) -> None:
    assert [one["last_used"] for one in json.loads(invoke("cache", "list", "--json").stdout)["kinds"]] == [None] * 4
    assert invoke("cache", "list").exit_code == 0
    result = invoke("cache", "clear", "--yes")
    assert (result.exit_code, result.stdout) == (0, f"Nothing of that is in {cache}.\n")


def test_only_known_files_of_the_given_kinds_are_deleted(invoke: Any, filled: Path) -> None:
    assert invoke("cache", "clear", "--kind", "weights", "--kind", "probes", "--yes").exit_code == 0
    assert files(filled) == {"tokenizers/b.bpe", "digests/c", "weights/notes.txt", "own/d"}
    assert invoke("cache", "clear", "--yes").stdout == "Deleted 2 files, 532 B.\n"
    assert files(filled) == {"weights/notes.txt", "own/d"}


def interrupt(_: str) -> str:
    raise KeyboardInterrupt


def test_nothing_is_deleted_without_confirmation(invoke: Any, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(filled)
    result = invoke("cache", "clear", input="y\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--yes" in result.stderr
    result = invoke("cache", "clear", "--kind", "wieghts", "--yes")
    assert result.exit_code == 2
    assert "'wieghts'" in result.stderr
    monkeypatch.setattr("aethermind.cli.console.is_terminal", lambda stream: True)
    for answer in ("n\n", "\n", ""):
        result = invoke("cache", "clear", input=answer)
        assert (result.exit_code, result.stdout.endswith("Nothing was deleted.\n")) == (0, True)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.input", interrupt)
        assert invoke("cache", "clear").exit_code == 130
    assert files(filled) == before
    assert invoke("cache", "clear", input="y\n").exit_code == 0
    assert files(filled) == {"weights/notes.txt", "own/d"}


def test_every_cached_file_belongs_to_a_kind(
    invoke: Any, cache: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that is left in the cache directory belongs to a kind."""
    monkeypatch.setattr(WeightCache, "min_bytes", 1)
    monkeypatch.setattr(WeightFolder, "needs_huge_pages", False)
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", 0)
    monkeypatch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=lambda keep, *arguments: keep(*arguments)))
    monkeypatch.setattr(tokenizer_cache, "_pending", {})
    model = copy_demo(tmp_path / "model")
    with closing(LLM(model, device="cpu", dtype="float32", num_kv_blocks=16, max_num_seqs=1, runtime=runtime)):
        pass
    for thread in threading.enumerate():
        if thread.name == "aethermind-keep-weights":
            thread.join()
    (tmp_path / "old").write_bytes(b"old")
    os.utime(tmp_path / "old", (0, 0))
    monkeypatch.setattr(file_digest, "_MIN_AGE_NS", -(1 << 62))  # whenever it was written
    digest_files([tmp_path / "old"])
    for answers in (isolated_devices.PROBES, isolated_devices.OPEN_VERDICTS, sandbox_load.LOAD_VERDICTS):
        answers.put("a", "stamp", {})
    counts = {one["kind"]: one["num_files"] for one in json.loads(invoke("cache", "list", "--json").stdout)["kinds"]}
    assert all(counts.values()), counts
    assert sum(counts.values()) == len(files(cache))


def test_models_are_listed_by_size(invoke: Any, cache: Path) -> None:
    folder = WeightFolder(cache / "weights", 2**30)
    folder.needs_huge_pages = False  # type: ignore[misc]
    for key, model, size in (
        ("a", "/models/small", 4096),
        ("b", "/models/large", 2**20),
        ("c", "/models/large", 2**20),
    ):
        assert folder.write(key, {"w": np.zeros(size, np.uint8)}, model=model)
    (cache / "weights" / "old.safetensors").write_bytes(b"broken")
    lines = invoke("cache", "list").stdout.splitlines()
    models = [line.split()[:3] for line in lines[lines.index("Weights by model:") + 2 :]]
    assert [words[0] for words in models] == ["/models/large", "/models/small", "old.safetensors"]
    assert models[0][1:] == ["2.11", "MB"]
