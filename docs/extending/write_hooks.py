"""Writes `hooks.md`, the reference of hooks, from `aethermind.plugins.hookspecs`: run it when that file changed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from aethermind.plugins import hookspecs

__all__ = ["PAGE", "text"]

PAGE = Path(__file__).with_name("hooks.md")
_EXAMPLES = Path(__file__).with_name("examples.md")

_HEAD = f"""\
# Hooks

What a package may provide. Written by `docs/extending/write_hooks.py` from `aethermind/plugins/hookspecs.py` and the
registries; do not edit it.

A plugin is a module that an entry point of the group `{hookspecs.ENTRY_POINT_GROUP}` names. It implements any of these
functions, marked with `@aethermind.plugins.hookimpl`, and is found as soon as its package is installed. Hooks register
names and import nothing heavy. One that fails takes its plugin out and no other, and `aethermind doctor` says why.
`aethermind plugin new` writes packages to begin with: [your own backend in ten minutes](your-own-backend.md),
[your own model](your-own-model.md), [native kernels](native-kernels.md). What they may import is
[listed](public-api.md), and every hook has an [example](examples.md).
"""


def text() -> str:
    """The page, as it should be."""
    return "\n".join((_HEAD, *_sections()))


def _sections() -> Iterator[str]:
    homes, examples = _imported_for_types(), _examples()
    for name, hook in inspect.getmembers(hookspecs.HookSpecs, inspect.isfunction):
        yield f"## {name}\n\n{_code(f'def {name}', hook)}\n\n{_words(hook)}\n"
        for annotation in (text.partition("[")[0] for text in hook.__annotations__.values()):
            if annotation.endswith("Registry"):
                register = getattr(import_module(homes[annotation]), annotation).register
                yield f"`registry` is a `{homes[annotation]}.{annotation}`:\n"
                yield f"{_code('registry.register', register)}\n\n{_words(register)}\n"
        yield f"Example: {examples[name]}\n"


def _examples() -> dict[str, str]:
    """Links by hook, from the table of examples."""
    rows = re.findall(r"^\| `(\w+)` \| (\[.*?\)) \| (.*) \|$", _EXAMPLES.read_text(encoding="utf-8"), re.MULTILINE)
    return {hook: f"{link}, {what}." for hook, link, what in rows}


def _code(name: str, function: Callable[..., object]) -> str:
    """How a method is called, without `self`; a default that is a function is not spelt out."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    shown = re.sub(r"<function \S+ at \w+>", "...", str(signature.replace(parameters=parameters))).replace("'", "")
    return f"```python\n{name}{shown}\n```"


def _imported_for_types() -> dict[str, str]:
    """Where the classes live that hooks name in their annotations."""
    tree = ast.parse(inspect.getsource(hookspecs))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def _words(documented: Callable[..., object]) -> str:
    """A docstring as paragraphs of a page."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(documented) or "")
    return "\n\n".join(textwrap.fill(" ".join(one.split()), 120, break_on_hyphens=False) for one in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
