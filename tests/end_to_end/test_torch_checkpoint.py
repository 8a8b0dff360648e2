"""A model whose weights torch.save wrote answers as it does from safetensors; without torch it says what to install."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from tests.end_to_end.models import DEMO, copy_demo

from aethermind import LLM, SamplingParams

WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from aethermind.cli import main
main()
"""


def pickled_demo(directory: Path) -> Path:
    copy_demo(directory, files={"model.safetensors": None})
    torch.save(safetensors.torch.load_file(DEMO / "model.safetensors"), directory / "pytorch_model.bin")
    return directory


def test_answers_are_those_of_safetensors(open_demo: Callable[..., LLM], demo: LLM, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    (wanted,) = demo.generate("Once upon a time", params)
    with open_demo(model=pickled_demo(tmp_path / "pickled")) as llm:
        (found,) = llm.generate("Once upon a time", params)
    assert found.outputs[0].token_ids == wanted.outputs[0].token_ids


def without_torch(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *args], capture_output=True, text=True)


def test_without_torch_the_error_names_what_to_install(tmp_path: Path) -> None:
    directory = str(pickled_demo(tmp_path / "pickled"))
    result = without_torch("generate", "hi", "--model", directory, "--device", "numpy")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert "aethermind-core[torch]" in result.stderr
    listing = without_torch("models", directory, str(DEMO))
    assert listing.returncode == 0
    assert "aethermind-core[torch]" in listing.stdout


def test_without_torch_safetensors_are_preferred(tmp_path: Path) -> None:
    directory = copy_demo(tmp_path / "both")
    (directory / "pytorch_model.bin").write_bytes(b"never opened")
    result = without_torch("generate", "hi", "--model", str(directory), "--device", "numpy", "--max-tokens", "1")
    assert result.returncode == 0, result.stderr
