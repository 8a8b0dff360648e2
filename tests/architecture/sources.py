"""The sources and modules that architecture tests check."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

__all__ = ["PACKAGES", "ROOT", "modules", "source_files"]

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "aethermind",
    "aethermind_cpu",
    "aethermind_cuda",
    "aethermind_cann",
    "aethermind_qwen2",
    "aethermind_llama",
    "aethermind_glm",
    "aethermind_phi",
    "aethermind_gemma",
    "aethermind_deepseek",
    "aethermind_gpt_oss",
    "aethermind_mamba",
    "aethermind_gpt2",
    "aethermind_bert",
    "aethermind_sim",
)


def source_files(*suffixes: str) -> list[Path]:
    """Source files of packages, examples, tools and tests, without build outputs."""
    folders = [*ROOT.glob("aethermind-*"), *(ROOT / name for name in ("examples", "release", "tests", "tools"))]
    found = (path for folder in folders for suffix in suffixes for path in folder.rglob(f"*{suffix}"))
    return sorted(path for path in found if not {"build", ".venv", "node_modules"} & set(path.relative_to(ROOT).parts))


NEEDS = {"aethermind_cann": "torch_npu"}
"""The module that a package needs and that exists on machines with its device only."""


def modules(*, packages_only: bool = False) -> list[ModuleType]:
    """Import every Python module of the installed packages, or only those that are packages."""
    found = {}
    for name in PACKAGES:
        top = import_module(name)
        found[name] = top
        for info in walk_packages(top.__path__, f"{name}."):
            if (info.ispkg or not packages_only) and not info.name.endswith(".__main__"):
                try:
                    found[info.name] = import_module(info.name)
                except ModuleNotFoundError as error:
                    if error.name != NEEDS.get(name):
                        raise
    return [module for module in found.values() if str(module.__file__).endswith(".py")]
