"""What is said about files that cannot be read: the advice fits what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO

from aethermind import LLM, Runtime
from aethermind.errors import AetherMindError, remedy

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model."""
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_called_one(model: Path, name: str) -> None:
    (model / name).write_bytes(POINTER)
    with pytest.raises(AetherMindError, match=r"This is a Git LFS pointer, not the file: run `git lfs pull`"):
        LLM(model, device="numpy")


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin"])
def test_so_are_pointers_to_other_formats(model: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(POINTER)
    with pytest.raises(AetherMindError, match="Git LFS pointer"):
        LLM(model / name if name.endswith(".gguf") else model, device="numpy")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_may_not_be_read_is_not_to_be_downloaded_again(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (model / name).write_text("{}", encoding="utf-8")
    read_bytes, read_text = Path.read_bytes, Path.read_text

    def check(path: Path) -> None:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))

    def guarded_bytes(path: Path) -> bytes:
        check(path)
        return read_bytes(path)

    def guarded_text(path: Path, *args: Any, **options: Any) -> str:
        check(path)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_bytes", guarded_bytes)
    monkeypatch.setattr(Path, "read_text", guarded_text)
    with pytest.raises(AetherMindError) as refused:
        LLM(model, device="numpy")
    assert str(refused.value).endswith("Let this user read it: chmod u+r, or sudo chown.")
    assert "not valid JSON" not in str(refused.value)


def test_libraries_without_exception_types_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert remedy(path, Exception("Permission denied (os error 13)")).startswith("Let this user read it")
    assert remedy(path, OSError(5, "Input/output error")) == "Check the path and the disk."
    path.write_bytes(b"{")
    assert remedy(path, ValueError("no JSON"), otherwise="Write it again.") == "Write it again."


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(AetherMindError, match=r"Pass the model that this LoRA adapter belongs to, .* as adapters"):
        LLM(tmp_path, device="numpy")


def test_a_directory_with_one_gguf_model_is_that_model(tmp_path: Path, runtime: Runtime) -> None:
    path = write_gguf(DEMO, tmp_path / "some-F32.gguf")
    (tmp_path / "README.md").touch()
    assert runtime.open_source(tmp_path).path == path
    (tmp_path / "mmproj-some-F16.gguf").touch()
    assert runtime.open_source(tmp_path).path == path, "the file of a vision tower is no model of its own"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(AetherMindError, match=r"holds no config.json \(found README.md, mmproj-some-F16.gguf, other"):
        runtime.open_source(tmp_path).config()


def test_parts_are_one_model(tmp_path: Path, runtime: Runtime) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").touch()
    assert runtime.open_source(tmp_path).path.name == "m-00001-of-00003.gguf"
