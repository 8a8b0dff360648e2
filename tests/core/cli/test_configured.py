"""Settings of verbs: layers and their origins, and no imports without settings."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MANUAL = Path(__file__).parents[3] / "docs" / "using" / "configuration.md"
FILE = "[model]\npath = 'of-file'\n[sampling]\ntop_k = 3\nstop = ['x']\ntemperature = 0.5\n[engine]\nnum_threads = 2\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_verb_gets_the_highest_layer(invoke: Any, fake_llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = fake_llm("a")
    Path("aethermind.toml").write_text(FILE)
    monkeypatch.setenv("AETHERMIND_SAMPLING__TEMPERATURE", "0.25")
    monkeypatch.setenv("AETHERMIND_MODEL", "of-variable")
    assert invoke("generate", "hi", "--top-k", "4").exit_code == 0
    (params,) = llm.params
    assert (params.top_k, params.stop, params.temperature) == (4, ("x",), 0.25)
    assert (llm.options["model"], llm.options["num_threads"]) == ("of-variable", 2)
    assert (llm.options["kv_cache_layout"], llm.options["fallback"]) == ("paged", "warn")


@pytest.mark.parametrize("args", [("--config", "x.toml", "generate", "hi"), ("generate", "hi", "--config", "x.toml")])
def test_the_file_is_named_before_or_after_the_verb(invoke: Any, fake_llm: Any, args: tuple[str, ...]) -> None:
    llm = fake_llm("a")
    Path("x.toml").write_text(FILE)
    assert invoke(*args).exit_code == 0
    assert llm.options["model"] == "of-file"


@pytest.mark.parametrize("args", [("doctor",), ("plugins", "list"), ("conform", "numpy")])
def test_a_file_for_a_verb_without_settings_is_refused(invoke: Any, args: tuple[str, ...]) -> None:
    result = invoke("--config", "missing.toml", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: --config has no effect on {args[0]}, which takes no settings. Leave it out.\n"
    assert "missing.toml, which does not exist" in invoke("--config", "missing.toml", "bench", "limits").stderr


@pytest.mark.parametrize(
    ("verb", "words", "model"),
    [
        (("chat",), ("there",), '"there"'),
        (("bench", "latency"), ("there",), '"there"'),
        (("serve",), ("a=there", "b=here"), '["a=there", "b=here"]'),
    ],
)
def test_a_verb_without_arguments_takes_the_model_as_one(
    invoke: Any, verb: tuple[str, ...], words: tuple[str, ...], model: str
) -> None:
    Path("aethermind.toml").write_text(FILE)
    assert f"path = {model}  # flag --model" in invoke(*verb, *words, "--print-config").stdout.splitlines()
    assert 'path = "of-file"  # aethermind.toml:model.path' in invoke(*verb, "--print-config").stdout.splitlines()


def test_print_config_names_origins(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.toml").write_text(FILE)
    monkeypatch.setenv("AETHERMIND_ENGINE__BLOCK_SIZE", "8")
    args = ("generate", "--config", "x.toml", "--top-k", "4", "--print-config")
    lines = invoke(*args).stdout.splitlines()
    assert "top_k = 4  # flag --top-k" in lines
    assert "num_threads = 2  # x.toml:engine.num_threads" in lines
    assert "block_size = 8  # AETHERMIND_ENGINE__BLOCK_SIZE" in lines
    assert 'device = "auto"  # default' in lines
    record = json.loads(invoke(*args, "--json").stdout)
    assert record["sampling"]["top_k"] == {"value": 4, "origin": "flag --top-k"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AETHERMIND_SAMPLING__TOPK", "did you mean AETHERMIND_SAMPLING__TOP_K?"),
        ("AETHERMIND_MODL", "AETHERMIND_MODEL?"),
    ],
)
def test_unknown_variables_are_errors(invoke: Any, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setenv(name, "1")
    result = invoke("generate", "hi")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: The environment variable {name} is unknown; ")
    assert message in result.stderr
    assert invoke("generate", "--help").exit_code == 0


def test_variables_of_plugins_are_not_checked(invoke: Any, fake_llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_llm("a")
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "portable")
    assert invoke("generate", "hi").exit_code == 0


def test_the_log_s_level_comes_from_the_file(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a")
    Path("aethermind.yaml").write_text("log: {level: info}\n")
    assert invoke("generate", "hi").exit_code == 0
    assert logging.getLogger("aethermind").level == logging.INFO


@pytest.mark.parametrize("args", [("--log-level", "debug", "generate", "x"), ("generate", "x", "--log-level", "DEBUG")])
def test_the_log_s_level_is_a_flag_before_or_after_the_verb(invoke: Any, fake_llm: Any, args: tuple[str, ...]) -> None:
    fake_llm("a")
    Path("aethermind.yaml").write_text("log: {level: info}\n")
    assert invoke(*args).exit_code == 0
    assert logging.getLogger("aethermind").level == logging.DEBUG
    assert invoke("generate", "x").exit_code == 0
    assert logging.getLogger("aethermind").level == logging.INFO


@pytest.mark.parametrize("args", [("--log-level", "loud", "doctor"), ("generate", "x", "--log-level", "loud")])
def test_an_unknown_log_level_flag_is_an_error(invoke: Any, args: tuple[str, ...]) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert "--log-level is 'loud' but should be one of debug, info, warning, error." in result.stderr + str(
        result.exception
    )


def test_a_server_logs_at_info_by_default(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` fails here once its level is set: there is no such address."""
    monkeypatch.delenv("AETHERMIND_LOG", raising=False)
    for args, level in (((), logging.INFO), (("--log-level", "error"), logging.ERROR)):
        assert invoke("serve", "--host", "127.0.0.1", "--model", "a=x", "--model", "a=y", *args).exit_code == 2
        assert logging.getLogger("aethermind").level == level
    monkeypatch.setenv("AETHERMIND_LOG", "warning")
    assert invoke("serve", "--model", "a=x", "--model", "a=y").exit_code == 2
    assert logging.getLogger("aethermind").level == logging.WARNING


@pytest.mark.parametrize("args", [["generate", "--help"], ["generate", "hi", "--max-tokens", "1"]])
def test_without_settings_the_configuration_is_not_imported(args: list[str]) -> None:
    program = (
        f"import sys; sys.argv = ['aethermind', *{args!r}]\n"
        "from aethermind.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "names = {'pydantic', 'yaml', 'tomllib', 'aethermind.config.configuration'}\n"
        "print(sorted(names & set(sys.modules)), file=sys.stderr)"
    )
    nothing = {name: value for name, value in os.environ.items() if not name.startswith("AETHERMIND_")}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=nothing)
    assert result.stderr.strip() == "[]"


def test_the_commands_of_the_manual_work() -> None:
    text = MANUAL.read_text(encoding="utf-8")
    (file,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    Path("aethermind.toml").write_text(file)
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) > 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        result = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert (result.returncode, result.stderr) == (0, ""), command


def test_an_unknown_log_level_variable_is_an_error(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", "loud")
    result = invoke("generate", "x")
    assert result.exit_code == 2
    assert "AETHERMIND_LOG" in result.stderr
    assert "'loud'" in result.stderr


def test_a_device_from_a_file_does_not_count_as_a_flag(invoke: Any) -> None:
    """What a verb refuses beside other flags is fine in a file, which is for other verbs too."""
    Path("aethermind.toml").write_text("[model]\ndevice = 'cpu'\n")
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,9,2\n"
    Path("trace.csv").write_text(trace)
    assert invoke("simulate", "trace.csv", "--policy", "fcfs").exit_code == 0
    result = invoke("explain", "--diff", "numpy", "abacus")
    assert "abacus" in result.stderr, "the second device is what is wrong"
