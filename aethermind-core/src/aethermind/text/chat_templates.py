"""A model's chat templates by name, and how they are read.

Most models have one, called `default`. Some have another for conversations with tools, `tool_use`, and further ones
that are chosen by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aethermind.env import expand_home
from aethermind.errors import InvalidArgumentError, TokenizerError

__all__ = ["ChosenTemplate", "DEFAULT_TEMPLATE", "TOOL_USE_TEMPLATE", "read_chat_templates"]

DEFAULT_TEMPLATE = "default"
TOOL_USE_TEMPLATE = "tool_use"
_DEFAULT_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"


def read_chat_templates(config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return templates by name, from the contents of tokenizer_config.json and from files, which take precedence.

    TokenizerError for a value that is not a template, and for a file that is not UTF-8.
    """
    found = _templates_in_config(config.get("chat_template"))
    files = {DEFAULT_TEMPLATE: directory / _DEFAULT_FILE} if (directory / _DEFAULT_FILE).is_file() else {}
    files |= {path.stem: path for path in sorted((directory / _FOLDER).glob("*.jinja"))}
    for name, path in files.items():
        try:
            found[name] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise TokenizerError(f"{path.name} is not readable UTF-8: {reason}.") from error
    return found


@dataclass(frozen=True, slots=True)
class ChosenTemplate:
    """The value of `--chat-template`: a file, whose text is the `source`, or the `name` of a template of the model."""

    name: str
    source: str | None

    @classmethod
    def read(cls, given: str) -> ChosenTemplate:
        """Read the file at the path `given`, or take `given` as a name; InvalidArgumentError if it can be neither."""
        path = expand_home(given)
        is_path = given != path.name or path.suffix != ""
        if not path.is_file() and not is_path and given.strip():
            return cls(given, None)
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"The chat template {given!r} is not UTF-8 text (byte {error.start}). Convert it first."
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidArgumentError(f"The chat template {given!r} cannot be read: {reason}.") from error
        if not source.strip():
            raise InvalidArgumentError(f"The chat template {given!r} is empty.")
        return cls(given, source)

    def of(self, templates: Mapping[str, str]) -> str:
        """Return the Jinja source, for a model with these templates; InvalidArgumentError if none has the name."""
        if self.source is not None:
            return self.source
        if self.name not in templates:
            others = f"has {', '.join(sorted(templates))}" if templates else "has none"
            raise InvalidArgumentError(
                f"There is no file {self.name!r}, nor a chat template of that name in the model, which {others}."
            )
        return templates[self.name]


def _templates_in_config(value: Any) -> dict[str, str]:
    """Return templates by name, from `chat_template` of tokenizer_config.json: a string, or a list of objects."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
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
