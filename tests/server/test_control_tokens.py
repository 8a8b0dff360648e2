"""Calls and reasoning whose tags are control tokens of the model, which the text of other answers does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.end_to_end.models import DEMO, copy_demo
from tests.server.conftest import serving
from tests.server.test_tool_calls import MESSAGES, TOOLS

from aethermind import LLM, Runtime

RENAMED = {"<|endoftext|>": "<|call|>", "<|im_start|>": "<|channel|>", "<|im_end|>": "<|message|>"}
TEMPLATE = b"""{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}{% for message in messages %}
{{ message.role }}: {{ message.content }}
{% if message.tool_calls %}<|channel|>analysis<|message|>{% endif %}
{% endfor %}
"""
CALL = '<|channel|> "commentary to=functions.weather json" <|message|> "{\\"place\\": \\"Rome\\"}"'
WRITES_A_CALL = {"grammar": f'start: <|channel|> "analysis" <|message|> "Hm." {CALL}'}
"""A grammar with control tokens makes the demo model, which was not trained on harmony, write it."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[openai.OpenAI]:
    """A model with harmony's control tokens and a template that writes them."""
    files: dict[str, bytes | None] = {"chat_template.jinja": TEMPLATE}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (DEMO / name).read_text()
        for old, new in RENAMED.items():
            text = text.replace(old, new)
        files[name] = text.encode()
    files["generation_config.json"] = b'{"eos_token_id": 2045}'
    files["tokenizer_config.json"] = json.dumps(
        {**json.loads(files["tokenizer_config.json"] or b""), "eos_token": "<|call|>"}
    ).encode()
    model = copy_demo(tmp_path_factory.mktemp("harmony") / "demo", files=files)
    llm = LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)
    with serving(llm) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_between_control_tokens(client: openai.OpenAI, stream: bool) -> None:
    ask: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 100}
    ask["extra_body"] = {"structured_outputs": WRITES_A_CALL}
    if stream:
        with client.chat.completions.stream(**ask) as events:
            for _ in events:
                pass
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**ask).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Rome"})
    assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
    assert choice.message.model_extra["reasoning_content"] == "Hm."
