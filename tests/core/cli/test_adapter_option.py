"""`--adapter`: the adapters that reach the model, and the one that answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.adapters import linear_shapes, write_adapter

from aethermind import Runtime

WORDS = ("--device", "numpy", "--dtype", "float32", "--max-tokens", "6", "--temperature", "0")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    config = json.loads((Runtime.boot().models.locate("demo") / "config.json").read_text())
    return write_adapter(tmp_path / "rhymes", linear_shapes(config), size=0.5)


@pytest.mark.parametrize(
    ("given", "name"),
    [([], ""), (["--adapter", "sql=./a"], "sql"), (["--adapter", "dir/law"], "law")],
)
def test_requests_use_the_adapter_that_is_given(invoke: Any, fake_llm: Any, given: list[str], name: str) -> None:
    llm = fake_llm("a")
    assert invoke("generate", "hi", *given).exit_code == 0
    assert llm.adapter == name
    assert list(llm.options["adapters"] or ()) == given[1:]
    assert invoke("chat", *given, input="hi\n").exit_code == 0
    assert llm.adapter == name


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_several_adapters_are_refused_by_a_command_with_one_request(
    invoke: Any, fake_llm: Any, verb: str, tmp_path: Path
) -> None:
    llm = fake_llm("a")
    words = ["hi"] if verb == "generate" else []
    refused = invoke(verb, *words, "--adapter", "sql=./a", "--adapter", "law=./b", input="hi\n")
    assert refused.exit_code == 2
    assert "one of the adapters sql, law; give it alone with --adapter" in refused.stderr
    file = tmp_path / "serve.toml"
    file.write_text('[model]\nadapters = ["sql=./a", "law=./b"]\n')
    assert invoke(verb, *words, "--config", str(file), input="hi\n").exit_code == 2
    assert invoke(verb, *words, "--config", str(file), "--adapter", "law=./b", input="hi\n").exit_code == 0
    assert llm.adapter == "law"


def test_a_file_lists_adapters(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[model]\nadapters = ["sql=./a", "law=./b"]\n')
    assert 'adapters = ["sql=./a", "law=./b"]' in invoke("serve", "--config", str(file), "--print-config").stdout
    file.write_text('[model]\nadapters = ["sql=./a", "sql=./b"]\n')
    refused = invoke("serve", "--config", str(file))
    assert refused.exit_code == 2
    assert "Two adapters are called 'sql'" in refused.stderr


def test_the_answer_is_that_of_the_adapted_model(invoke: Any, adapter: Path) -> None:
    plain, other = (
        json.loads(invoke("generate", "Once upon a time", *WORDS, "--json", *given).stdout)
        for given in ([], ["--adapter", str(adapter)])
    )
    assert plain["text"] != other["text"]
    assert (plain["model"]["adapters"], other["model"]["adapters"]) == ([], ["rhymes"])


def test_an_invalid_adapter_is_an_error_before_loading(invoke: Any, tmp_path: Path) -> None:
    refused = invoke("generate", "hi", *WORDS, "--adapter", str(tmp_path))
    assert refused.exit_code == 2
    assert "is no adapter: it holds no adapter_config.json" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_adapters_are_refused_with_several_models(invoke: Any) -> None:
    refused = invoke("serve", "--model", "a=demo", "--model", "b=demo", "--adapter", "x")
    assert refused.exit_code == 2
    assert "--adapter is for one model, but several are given" in refused.stderr
    refused = invoke("serve", "--model", "a=demo", "--adapter", "a=./x")
    assert refused.exit_code == 2
    assert "A model and an adapter are both called 'a'" in refused.stderr
