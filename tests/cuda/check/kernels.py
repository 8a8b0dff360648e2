"""Whether the cubins in this tree are those of its sources, whatever compiler is here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from aethermind_cuda.library import Cubins

__all__ = ["load_builder", "reason_to_compile", "reason_to_keep"]

_BUILD_KERNELS = Path(__file__).parents[3] / "aethermind-cuda" / "build_kernels.py"


def reason_to_keep(target: str, capability: tuple[int, int]) -> str | None:
    """Why nothing is compiled: the cubins are fresh, or there is no compiler and they can be loaded. Else None."""
    stale = reason_to_compile(target)
    if stale is None:
        return "the kernels are those of these sources"
    if not _has_compiler() and Cubins().unsupported_reason(capability) is None:
        return f"{stale}, and there is no nvcc: the kernels are used as they are"
    return None


def reason_to_compile(target: str) -> str | None:
    """What is missing or older than its source, or None. The compiler's release is that of the manifest."""
    builder, cubins = load_builder(), Cubins()
    for source in sorted(builder.SOURCES.glob("*.cu")):
        if target in builder.TARGETS and target not in builder.targets_of(source):
            continue
        known = cubins.operators.get(source.stem, {})
        if target not in known.get("targets", {}):
            return f"{source.stem} was not compiled for sm_{target}"
        if known["digest"] != builder.source_digest(
            source, (cubins.manifest["compiler"], *cubins.manifest.get("flags", builder.FLAGS))
        ):
            return f"{source.stem} changed since it was compiled"
    return None


def _has_compiler() -> bool:
    builder = load_builder()
    try:
        builder.find_tool("nvcc")
    except builder.BuildError:
        return False
    return True


def load_builder() -> ModuleType:
    """The build script, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("build_kernels", _BUILD_KERNELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
