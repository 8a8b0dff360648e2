"""The chat template of a server: the model's own, one that it was started with, or none."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.server.served_model import ServedModel
from aethermind.text.chat_templates import ChosenTemplate

HELLO = [{"role": "user", "content": "Hello"}]
NAMED = [{"name": "plain", "template": "P:{{ messages[0].content }}"}, {"name": "rag", "template": "R"}]


@pytest.fixture
def named(tmp_path: Path, runtime: Runtime) -> LLM:
    """A model with two templates, neither of them for all conversations."""
    return model_with(tmp_path / "named", runtime, NAMED)


def model_with(path: Path, runtime: Runtime, template: object) -> LLM:
    copy_demo(path)
    (path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return LLM(path, device="cpu", max_model_len=64, runtime=runtime)


def written(llm: LLM, chosen: ChosenTemplate | None) -> str:
    with serving(llm, chat_template=chosen) as address, httpx.Client(base_url=address, timeout=30) as http:
        tokens = http.post("/tokenize", json={"model": "demo", "messages": HELLO}).json()["tokens"]
        chat = http.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO, "max_tokens": 1})
        assert chat.json()["usage"]["prompt_tokens"] == len(tokens)
    return llm.tokenizer.decode(tokens, skip_special_tokens=False)


def test_a_named_template_of_the_model_is_used(named: LLM) -> None:
    assert written(named, ChosenTemplate.read("plain")) == "P:Hello"


def test_a_template_file_replaces_the_one_of_the_model(runtime: Runtime, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("F:{{ messages[0].content }}")
    llm = LLM(device="cpu", max_model_len=64, runtime=runtime)
    assert written(llm, ChosenTemplate.read(str(file))) == "F:Hello"


@pytest.mark.parametrize(("template", "remedy"), [(NAMED, "--chat-template plain or rag, or FILE."), ("", " FILE.")])
def test_a_chat_without_a_template_is_a_400_with_a_remedy(
    tmp_path: Path, runtime: Runtime, template: object, remedy: str
) -> None:
    llm = model_with(tmp_path / "none", runtime, template)
    with serving(llm) as address, httpx.Client(base_url=address, timeout=30) as http:
        for url, body in (("chat/completions", {"messages": HELLO}), ("responses", {"input": "Hello"})):
            answer = http.post(f"/v1/{url}", json={"model": "demo", **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "no_chat_template")
            assert error["message"].endswith(remedy)


def test_an_invalid_chat_template_option_is_an_error(named: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"There is no file 'tool_use'.*has plain, rag"):
        ChosenTemplate.read("tool_use").of(named.tokenizer.chat_templates)
    for given in ("./nowhere", "mine.jinja", str(tmp_path)):
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            ChosenTemplate.read(given)
    latin = tmp_path / "latin.jinja"
    latin.write_bytes(b"caf\xe9")
    with pytest.raises(InvalidArgumentError, match=r"is not UTF-8 text \(byte 3\)\. Convert it first"):
        ChosenTemplate.read(str(latin))
    empty = tmp_path / "empty.jinja"
    empty.write_text(" ")
    with pytest.raises(InvalidArgumentError, match="is empty"):
        ChosenTemplate.read(str(empty))


def test_a_syntax_error_of_a_template_is_found_at_start(llm: LLM) -> None:
    served = ServedModel.of("demo", llm, None)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="syntax error in line 1"):
        served.with_chat_template(ChosenTemplate("broken.jinja", "{% for %}"))
