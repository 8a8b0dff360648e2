"""A model's chat templates by name: where they are written, and which of them a conversation takes.

Most models have one, called `default`. Some have another for conversations with tools, `tool_use`, and more that are
asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aethermind.errors import TokenizerError

__all__ = ["DEFAULT", "choose_template", "read_chat_templates"]

DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"


def read_chat_templates(config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Templates by name, of tokenizer_config.json's contents and of files beside it, which win; TokenizerError names
    what is none.
    """
    found = _of_config(config.get("chat_template"))
    files = {DEFAULT: directory / _FILE} if (directory / _FILE).is_file() else {}
    files |= {path.stem: path for path in sorted((directory / _FOLDER).glob("*.jinja"))}
    for name, path in files.items():
        try:
            found[name] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise TokenizerError(f"{path.name} is not readable UTF-8: {reason}.") from error
    return found


def choose_template(templates: Mapping[str, str], given: str | None, *, has_tools: bool) -> str:
    """The Jinja source for a conversation: that of a `given` name, or else what was given.

    TokenizerError where nothing is given and nothing fits.
    """
    if given is not None:
        return templates.get(given, given)
    if has_tools and _WITH_TOOLS in templates:
        return templates[_WITH_TOOLS]
    if DEFAULT in templates:
        return templates[DEFAULT]
    if templates:
        raise TokenizerError(
            f"The model has chat templates for {', '.join(sorted(templates))} and none for all conversations. Name one "
            "of them as chat_template, or give a template as Jinja source."
        )
    raise TokenizerError(
        "The model has no chat template, so it was not taught to tell speakers apart. Continue a text with `generate` "
        "instead, or give a template as Jinja source."
    )


def _of_config(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = value if isinstance(value, list) else [None]
    named: dict[str, str] = {}
    for entry in entries:
        name, template = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if isinstance(name, str) and isinstance(template, str):
            named[name] = template
    if len(named) != len(entries):
        raise TokenizerError(
            f"tokenizer_config.json gives chat_template as a JSON {type(value).__name__}; "
            'write Jinja source, or a list of {"name", "template"} objects.'
        )
    return named
