"""Imports are lazy: each use loads only the modules that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(code: str, *names: str) -> list[str]:
    """The modules of `names` that are imported after running code in a fresh process."""
    program = f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()


def test_importing_the_package_loads_no_heavy_module() -> None:
    heavy = (
        "numpy",
        "torch",
        "typer",
        "pluggy",
        "ml_dtypes",
        "tokenizers",
        "jinja2",
        "rich",
        "pydantic",
        "transformers",
    )
    assert loaded_by("import aethermind", *heavy) == []


@pytest.mark.parametrize(
    "package",
    ["hal", "ops", "ops.catalog", "dispatch", "graph", "plugins", "runtime", "cache", "model", "sampling", "eager"],
)
def test_layers_below_the_engine_import_neither_numpy_nor_the_command_line(package: str) -> None:
    assert loaded_by(f"import aethermind.{package}", "numpy", "torch", "typer", "tokenizers", "jinja2") == []


def test_generating_loads_neither_torch_nor_what_chats_and_servers_need() -> None:
    code = """
from aethermind import LLM, SamplingParams
llm = LLM("demo", device="numpy", max_model_len=64)
(output,) = llm.generate("Once", SamplingParams(max_tokens=2, temperature=0.0))
assert len(output.outputs[0].token_ids) == 2
"""
    names = ("torch", "transformers", "typer", "pydantic", "jinja2", "msgpack", "aethermind.checkpoint.gguf", "numpy")
    assert loaded_by(code, *names) == ["numpy"]


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    import aethermind

    with pytest.raises(AttributeError, match="module 'aethermind' has no attribute 'Llm'"):
        _ = aethermind.Llm
