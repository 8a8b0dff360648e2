"""Sessions in the shapes of coding agents: how many tokens of their prompts are reused, of those that could be.

The measure is a perfect prefix cache: it keeps everything that was computed for requests that have ended, and reuses
the longest common prefix, in whole blocks and short of the last token. The test computes that from token ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.clients.scripted import MODEL, ScriptedEngine, scripted_model, serving_scripted
from tests.clients.suites.common import script

from aethermind import LLM, Runtime

BLOCK_SIZE = 16
LEAST_REUSED = 0.98
MODELS: dict[str, dict[str, Any]] = {
    "attention": {},
    "hybrid": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
}
WORDS = (
    "the",
    "old",
    "fox",
    "sat",
    "by",
    "sea",
    "and",
    "looked",
    "for",
    "file",
    "where",
    "function",
    "returns",
    "error",
)


@dataclass
class Trace:
    """What a perfect cache holds, and the tokens that it and the engine's cache reused."""

    sequences: list[np.ndarray[Any, Any]] = field(default_factory=list)
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    """(tokens of the prompt, reusable tokens, reused tokens) of each request."""

    def reusable(self, prompt: np.ndarray[Any, Any]) -> int:
        longest = 0
        for sequence in self.sequences:
            size = min(len(sequence), len(prompt) - 1)
            differs = sequence[:size] != prompt[:size]
            longest = max(longest, int(differs.argmax()) if differs.any() else size)
        return longest // BLOCK_SIZE * BLOCK_SIZE

    def fraction(self, first: int = 0) -> float:
        """Reused of the reusable tokens, of the requests from the given one on."""
        reusable = sum(each for _, each, _ in self.requests[first:])
        return sum(min(cached, each) for _, each, cached in self.requests[first:]) / reusable


class RecordingEngine(ScriptedEngine):
    """Records its requests' tokens in `trace`."""

    trace: Trace

    async def stream_deltas(self, prompt: Any, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        prompt_ids, cached = np.array(prompt.token_ids), 0
        reusable = self.trace.reusable(prompt_ids)
        output_ids: list[int] = []
        async for delta in super().stream_deltas(prompt, *arguments, **options):
            cached = delta.num_cached_tokens
            output_ids += delta.completions[0].token_ids
            if delta.finished:  # before the client knows, which may send the next request at once
                self.trace.sequences.append(np.concatenate([prompt_ids, np.array(output_ids[:-1], int)]))
                self.trace.requests.append((len(prompt_ids), reusable, cached))
            yield delta


@contextmanager
def agents_server(model: Path, trace: Trace, runtime: Runtime, **options: Any) -> Iterator[httpx.Client]:
    engine_class = type("Recording", (RecordingEngine,), {"trace": trace})
    sizes = {"max_model_len": 32768, "max_num_batched_tokens": 256, "block_size": BLOCK_SIZE, "max_num_seqs": 8}
    given = {"device": "cpu", "load_format": "dummy", "dtype": "float32", "num_kv_blocks": 8192, "runtime": runtime}
    with (
        LLM(model, **{**given, **sizes, **options}) as llm,
        serving_scripted(llm, engine_class) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


def prose(num_words: int, seed: str) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(num_words))


def tools(count: int) -> list[dict[str, Any]]:
    """Tools in Anthropic's format, with descriptions as long as agents write them."""
    path = {"type": "string", "description": prose(6, "path")}
    schema = {"type": "object", "properties": {"path": path}, "required": ["path"], "additionalProperties": False}
    names = [f"Tool{number}" for number in range(count)]
    return [{"name": name, "description": prose(30, name), "input_schema": schema} for name in names]


def call(number: int, thought: str = "") -> str:
    body = json.dumps({"name": f"Tool{number % 4}", "arguments": {"path": f"src/file_{number}.py"}})
    reasoning = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return f"{reasoning}{prose(4, f'step {number}')}.\n<tool_call>\n{body}\n</tool_call>"


@dataclass
class MessagesAgent:
    """An agent of the Messages API: every request has all messages, and another billing header."""

    client: httpx.Client
    system: str
    num_tools: int = 10
    messages: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str, num_calls: int) -> None:
        """A question that takes some tool calls, with results of different lengths."""
        answers = [*(call(number, prose(8, text)) for number in range(num_calls)), f"{prose(8, text)}."]
        reminder = {"type": "text", "text": f"<system-reminder>{prose(40, 'reminder')}</system-reminder>"}
        content = [reminder, {"type": "text", "text": f"{text} {script(*answers)}"}]
        self.messages.append({"role": "user", "content": content})
        while True:
            answer = self._send()
            self.messages.append({"role": "assistant", "content": answer["content"]})
            calls = [block for block in answer["content"] if block["type"] == "tool_use"]
            if not calls:
                return
            results = [
                {"type": "tool_result", "tool_use_id": each["id"], "content": prose(80, each["input"]["path"])}
                for each in calls
            ]
            self.messages.append({"role": "user", "content": results})

    def _send(self) -> dict[str, Any]:
        billing = f"x-anthropic-billing-header: cc_version=2.0; cch={random.random()};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": self.system}]
        system[1]["cache_control"] = {"type": "ephemeral"}
        body = {"model": MODEL, "max_tokens": 4000, "system": system, "messages": self.messages}
        body |= {"tools": tools(self.num_tools), "thinking": {"type": "enabled", "budget_tokens": 1024}}
        response = self.client.post("/v1/messages", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@dataclass
class ResponsesAgent:
    """An agent of the Responses API, which stores nothing: every request has all items."""

    client: httpx.Client
    items: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str, num_calls: int) -> None:
        answers = [*(call(number, prose(8, text)) for number in range(num_calls)), f"{prose(8, text)}."]
        if not self.items:
            self._say(f"<environment_context>{prose(40, 'environment')}</environment_context>")
        self._say(f"{text} {script(*answers)}")
        functions = [
            {"type": "function", "name": tool["name"], "strict": False, "parameters": tool["input_schema"]}
            for tool in tools(6)
        ]
        while True:
            body = {"model": MODEL, "instructions": prose(400, "codex"), "input": self.items, "tools": functions}
            body |= {"tool_choice": "auto", "parallel_tool_calls": False, "store": False}
            response = self.client.post("/v1/responses", json=body)
            assert response.status_code == 200, response.text
            output = response.json()["output"]
            self.items += output
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return
            for each in calls:
                result = {"type": "function_call_output", "call_id": each["call_id"], "output": prose(120, text)}
                self.items.append(result)

    def _say(self, text: str) -> None:
        self.items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})


def work(client: httpx.Client) -> list[MessagesAgent | ResponsesAgent]:
    """Two agents beside each other, sub-agents of the first, and edits of its early messages."""
    first, second = MessagesAgent(client, prose(500, "system")), ResponsesAgent(client)
    for turn in range(2):
        first.ask(f"Question {turn}.", 3)
        second.ask(f"Question {turn}.", 2)
    helpers = [MessagesAgent(client, prose(300, "helper"), 5) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: helpers[number].ask(f"Search {number}.", 2), range(3)))
    first.messages[4]["content"][0]["content"] = "[Old tool result content cleared]"
    first.ask("Question 2.", 3)
    del first.messages[9:]  # back to the beginning of an earlier question
    first.ask("Another question.", 2)
    return [first, second, *helpers]


@pytest.mark.parametrize("kind", MODELS)
def test_agents_prompts_are_reused(
    kind: str, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an engine that finds them in a KV store."""
    # Fetching is never too slow to be worth it: what a machine measures decides nothing.
    monkeypatch.setattr("aethermind.engine.kv_offload.offload.FetchCosts.is_worth_fetching", lambda *_: True)
    model, trace = scripted_model(tmp_path, MODELS[kind]), Trace()
    options = {"kv_store": f"disk:{tmp_path / 'store'}"}
    with agents_server(model, trace, runtime, **options) as client:
        agents = work(client)
    assert trace.fraction() >= LEAST_REUSED
    num_before = len(trace.requests)
    with agents_server(model, trace, runtime, **options) as client:
        for agent in agents:
            agent.client = client
            agent.ask("Where were we?", 1)
    assert trace.fraction(num_before) >= LEAST_REUSED
