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

_SETTINGS = tuple(one for section in SECTIONS for one in section.settings.values())


def _row(one: Setting) -> str:
    default = f"unset: {one.unset}" if one.default is None else f"`{json.dumps(one.default)}`"
    return f"| `{one.name}` | {default} | {one.help} |\n"


def _renamed_row(one: Setting, old: str) -> str:
    return f"| `{one.section}.{old}` | `{one.name}` | `{flag_of(one)}` |\n"


def with_tables(page: str) -> str:
    """The page with the current rows below the heads of its two tables."""
    keys = "".join(map(_row, _SETTINGS))
    renamed = "".join(_renamed_row(one, old) for one in _SETTINGS for old in one.old_names)
    page = _with_rows(page, "| key | default | meaning |\n|---|---|---|\n", keys)
    return _with_rows(page, "| old key | key | flag |\n|---|---|---|\n", renamed)


def _with_rows(page: str, head: str, rows: str) -> str:
    return re.sub(rf"({re.escape(head)})(\|.*\n)*", lambda found: found[1] + rows, page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
