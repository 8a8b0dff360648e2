"""What `git clone` leaves without git-lfs, in place of each file of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.torch_pickle import TorchFile
from aethermind.errors import AetherMindError
from aethermind.model.hf_files import read_hf_config
from aethermind.text.tokenizer import Tokenizer

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5368709120\n"


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.safetensors", SafetensorsFile),
        ("model.gguf", GgufFile),
        ("pytorch_model.bin", TorchFile),
        ("model.safetensors.index.json", lambda path: Checkpoint.open(path.parent)),
        ("config.json", lambda path: read_hf_config(path.parent)),
        ("tokenizer.json", lambda path: Tokenizer.from_directory(path.parent)),
        ("tokenizer_config.json", lambda path: Tokenizer.from_directory(path.parent)),
    ],
)
def test_a_pointer_is_told_from_a_broken_file(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / name
    path.write_text(POINTER)
    with pytest.raises(AetherMindError, match=r"This is a Git LFS pointer, not the file: run `git lfs pull`"):
        read(path)
    path.write_text(POINTER.replace("git-lfs", "example"))
    with pytest.raises(AetherMindError) as caught:
        read(path)
    assert "LFS" not in str(caught.value)
