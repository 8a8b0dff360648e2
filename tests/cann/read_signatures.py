"""Writes `signatures.txt`: what the real torch_npu offers, read from its wheel without a device.

    pip download --no-deps torch_npu
    python tests/cann/read_signatures.py torch_npu-*.whl > tests/cann/signatures.txt

Three kinds of lines: `version`, the wheel's; `aten NAME`, an operator of torch that torch_npu computes on the device
(others go to the host); `npu SCHEMA`, an operator of its own that the backend calls; and `py NAME(PARAMETERS)`, a
function or class of `torch.npu` that the backend calls, with the parameters' names and defaults, and those methods of
such a class that are called by the same name somewhere in the backend.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

__all__ = ["called_methods", "used_names"]

BACKEND = Path(__file__).parents[2] / "aethermind-cann/src/aethermind_cann"
_FUNCTIONS = "torch_npu/csrc/aten/"


def used_names() -> set[str]:
    """Every name that the backend uses of `torch_npu` and `torch.npu`: `npu_rms_norm`, `npu.Stream`."""
    found = set()
    for path in BACKEND.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                for prefix, short in (("torch_npu.", ""), ("torch.npu.", "npu.")):
                    if name.startswith(prefix):
                        found.add(short + name.removeprefix(prefix).split(".")[0])
    return found


def called_methods() -> set[str]:
    """The last names of all calls in the backend."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in BACKEND.rglob("*.py")]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def _lines(wheel: zipfile.ZipFile) -> Iterator[str]:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    yield "version " + re.findall(r"^Version: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)[0]
    used, methods = used_names(), called_methods()
    schemas: dict[str, str] = {}
    for file in ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml"):
        content = yaml.safe_load(wheel.read(_FUNCTIONS + file))
        for entries in content.values():
            for entry in entries if isinstance(entries, list) else ():
                text = entry["func"] if isinstance(entry, dict) else entry
                schemas[text.partition("(")[0].strip()] = text
    for name, text in sorted(schemas.items()):
        if "npu" not in name:
            yield f"aten {name}"
        elif name in used:
            yield f"npu {text}"
    for path in ("utils", "memory", "streams", "graphs", "mstx", "__init__"):
        for node in ast.parse(wheel.read(f"torch_npu/npu/{path}.py")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and f"npu.{node.name}" in used:
                yield f"py npu.{node.name}({_parameters(node)})"
                for one in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(one, ast.FunctionDef) and one.name in methods - {"__init__"}:
                        yield f"py npu.{node.name}.{one.name}({_of_method(one)})"


def _parameters(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return ast.unparse(_without_annotations(node.args))
    makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__new__", "__init__")]
    return _of_method(makers[0]) if makers else ""


def _of_method(method: ast.FunctionDef) -> str:
    arguments = _without_annotations(method.args)
    is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in method.decorator_list)
    arguments.args = arguments.args if is_static else arguments.args[1:]
    return ast.unparse(arguments)


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    return arguments


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        print("\n".join(_lines(wheel)))
