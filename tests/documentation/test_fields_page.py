"""The page about fields of checkpoints says what the tables say, and is found from the page about models."""

from __future__ import annotations

from tests.documentation.fields_page import PAGE, fields_page


def test_the_page_is_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == fields_page(), "run python -m tests.documentation.fields_page"


def test_the_page_is_found() -> None:
    models = PAGE.parent / "using" / "models.md"
    assert f"(../{PAGE.name})" in models.read_text(encoding="utf-8")
