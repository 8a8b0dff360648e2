"""The reference of the Python API says what the code says."""

from __future__ import annotations

import re

from release.python_reference import PAGE, reference

import aethermind


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `python -m release.python_reference`"


def test_every_public_name_is_on_it() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) >= set(aethermind.__all__) - {"AetherMindError", "__version__"}
