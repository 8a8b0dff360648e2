"""`aethermind tools check`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.documentation.conftest import write_model_with_tools
from tests.end_to_end.models import copy_demo


def test_calls_that_come_back(invoke: Any, tmp_path: Path) -> None:
    write_model_with_tools(tmp_path / "model")
    result = invoke("tools", "check", str(tmp_path / "model"))
    assert result.exit_code == 0
    assert "get_weather: right" in result.stdout
    assert "find_price: right" in result.stdout
    record = json.loads(invoke("tools", "check", str(tmp_path / "model"), "--json").stdout)
    assert record["is_right"]
    assert record["calls"] == ["<tool_call>…</tool_call>"]
    (answer,) = record["answers"]
    assert answer["found"] == answer["calls"]


def test_a_template_that_writes_calls_in_a_format_of_its_own(invoke: Any, tmp_path: Path) -> None:
    template = b"{% for m in messages %}{% for c in m.tool_calls or () %}@{{ c.function.name }}{% endfor %}{% endfor %}"
    model = copy_demo(tmp_path / "model", files={"chat_template.jinja": template})
    result = invoke("tools", "check", str(model))
    assert result.exit_code == 1
    assert "@get_weather" in result.stdout
    assert "get_weather: not read" in result.stdout


def test_a_template_that_writes_no_calls(invoke: Any) -> None:
    result = invoke("tools", "check", "demo")
    assert result.exit_code == 1
    assert "(no call)" in result.stdout
    assert invoke("tools", "check", "no/such/model").exit_code == 2
