"""Commands of plugins, and isolation of broken ones."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
from aethermind.errors import PluginError
from aethermind.plugins import hookimpl
@hookimpl
def register_commands(app):
"""

GREET = """
    @app.command("greet")
    def greet(name: str):
        "Say hello."
        print("hello", name)
"""

FAIL = """
    @app.command("fail")
    def fail():
        raise PluginError("No.")
"""

USURP = """
    @app.command("doctor")
    def doctor():
        print("mine")
"""


def test_a_plugin_adds_a_command(invoke: Any, install_plugin: Any) -> None:
    install_plugin("greeter", HEAD + GREET)
    listing = invoke("--help").stdout
    assert "greet" in listing
    assert "Say hello." in listing
    result = invoke("greet", "you")
    assert (result.exit_code, result.stdout) == (0, "hello you\n")


def test_errors_of_a_plugin_s_command_are_sentences(invoke: Any, install_plugin: Any) -> None:
    install_plugin("failer", HEAD + FAIL)
    result = invoke("fail")
    assert (result.exit_code, result.stderr) == (2, "Error: No.\n")


def test_a_taken_command_name_is_refused_and_reported_by_doctor(invoke: Any, install_plugin: Any) -> None:
    install_plugin("usurper", HEAD + USURP + GREET)
    report = invoke("doctor").stdout
    assert "Machine" in report
    assert "command 'doctor' exists already" in report
    assert invoke("greet", "you").stdout == "hello you\n"


@pytest.mark.usefixtures("broken_plugins")
def test_broken_plugins_do_not_affect_help_and_usage_errors(invoke: Any) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "generate" in result.stdout
    assert invoke("frobnicate").exit_code == 2
