"""`python -m release.settings_reference` writes the tables of keys in docs/using/configuration.md.

They come from `aethermind.cli.settings`; a test compares the page with what this program would write.
"""

from __future__ import annotations

import json
import re

from release.distributions import ROOT

from aethermind.cli.flags import flag_of
from aethermind.cli.settings import SECTIONS
from aethermind.config import Setting

__all__ = ["PAGE", "with_tables"]

PAGE = ROOT / "docs/using/configuration.md"

_SETTINGS = tuple(setting for section in SECTIONS for setting in section.settings.values())


def _row(setting: Setting) -> str:
    default = f"unset: {setting.unset}" if setting.default is None else f"`{json.dumps(setting.default)}`"
    return f"| `{setting.name}` | {default} | {setting.help} |\n"


def _renamed_row(setting: Setting, old: str) -> str:
    return f"| `{setting.section}.{old}` | `{setting.name}` | `{flag_of(setting)}` |\n"


def with_tables(page: str) -> str:
    """The page with the current rows below the heads of its two tables."""
    keys = "".join(map(_row, _SETTINGS))
    renamed = "".join(_renamed_row(setting, old) for setting in _SETTINGS for old in setting.old_names)
    page = _with_rows(page, "| key | default | meaning |\n|---|---|---|\n", keys)
    return _with_rows(page, "| old key | key | flag |\n|---|---|---|\n", renamed)


def _with_rows(page: str, head: str, rows: str) -> str:
    return re.sub(rf"({re.escape(head)})(\|.*\n)*", lambda match: match[1] + rows, page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
