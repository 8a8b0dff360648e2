"""Ollama's API with Ollama's Python client, against OpenAI's API of the same server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import jsonschema
import numpy as np
import ollama
import openai
import pytest
from tests.end_to_end.models import copy_demo
from tests.server.conftest import paused_engine, serving
from tests.server.test_abuse import HOSTILE, MALFORMED
from tests.server.test_models_on_demand import Held

from aethermind import LLM, Runtime
from aethermind.engine.config import EngineConfig
from aethermind.engine.requests.output import RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputAccumulator, OutputDelta
from aethermind.sampling.params import SamplingParams
from aethermind.server import ModelPool, ModelSource, Tenants
from aethermind.server.admission import Limits
from aethermind.server.generation import PromptState
from aethermind.server.observation.observer import HttpRecord
from aethermind.server.ollama.requests import ChatBody, OllamaParams
from aethermind.server.ollama.response import OllamaResponseBuilder
from aethermind.server.openai.request_fields import StructuredOutputsFields
from aethermind.server.pool_entry import engine_inprocess
from aethermind.server.served_model import ServedModel
from aethermind.text.answer_format import HERMES_CALLS, AnswerFormat
from aethermind.text.chat_prompt import RenderedChat

MESSAGES = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"temperature": 0, "num_predict": 24}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
TEMPLATE = b"""{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}{{ enable_thinking }}
{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{{ message.reasoning_content }}
{%- for call in message.tool_calls or () %}{{ call.id }}{{ call.function.name }}{{ call.function.arguments.place }}
{%- endfor %}{{ message.tool_call_id }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"""


@pytest.fixture(scope="module")
def api(address: str) -> ollama.Client:
    return ollama.Client(host=address)


@pytest.fixture(scope="module")
def tool_api(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[ollama.Client]:
    """A client of a server whose chat template reads tools and thinking."""
    model = copy_demo(tmp_path_factory.mktemp("tools") / "demo", files={"chat_template.jinja": TEMPLATE})
    with serving(LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)) as address:
        yield ollama.Client(host=address)


def test_a_chat_has_the_answer_of_openais_api(api: ollama.Client, client: openai.OpenAI) -> None:
    expected = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=24)
    answer = api.chat("demo:latest", messages=MESSAGES, options=GREEDY)
    assert answer.message.role == "assistant"
    assert answer.message.content == expected.choices[0].message.content
    assert (answer.model, answer.done, answer.done_reason) == ("demo:latest", True, "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (expected.usage.prompt_tokens, 24)
    durations = [getattr(answer, name) for name in DURATIONS]
    assert all(isinstance(duration, int) and duration > 0 for duration in durations)
    assert durations[0] >= sum(durations[2:]), "the total has the parts"


@pytest.mark.parametrize("extra", [{}, {"format": "json"}, {"format": SCHEMA}, {"logprobs": True, "top_logprobs": 2}])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_adds_up_to_the_whole_answer(api: ollama.Client, extra: dict[str, Any], seed: int) -> None:
    options = {"seed": seed, "num_predict": 30}
    for ask, text_of in (
        (lambda **kind: api.chat("demo", messages=MESSAGES, **kind), lambda part: part.message.content),
        (lambda **kind: api.generate("demo", "Once upon", **kind), lambda part: part.response),
    ):
        whole = ask(options=options, **extra)
        *parts, last = ask(options=options, stream=True, **extra)
        assert "".join(map(text_of, parts)) == text_of(whole) != ""
        assert not any(part.done for part in parts)
        assert (text_of(last), last.done, last.done_reason) == ("", True, whole.done_reason)
        assert (last.prompt_eval_count, last.eval_count) == (whole.prompt_eval_count, whole.eval_count)
        assert [token for part in parts for token in part.logprobs or ()] == list(whole.logprobs or ())


def test_the_options_are_those_of_openais_api(api: ollama.Client, client: openai.OpenAI) -> None:
    options = {"temperature": 0.9, "top_k": 7.0, "top_p": 0.9, "min_p": 0.01, "seed": 5, "stop": ["."]}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2}
    expected = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        temperature=0.9,
        top_p=0.9,
        seed=5,
        stop=["."],
        **penalties,
        max_tokens=40,
        extra_body={"top_k": 7, "min_p": 0.01, "repetition_penalty": 1.2},
    )
    ignored = {"num_ctx": 512, "num_gpu": 1, "mirostat": 2, "num_thread": 3, "unheard_of": 1}
    options |= {**penalties, **ignored, "repeat_penalty": 1.2, "num_predict": 40}
    answer = api.chat("demo", messages=MESSAGES, options=options)
    assert answer.message.content == expected.choices[0].message.content


@pytest.mark.parametrize("num_predict", [-1, -2, 100_000])
def test_an_answer_ends_with_the_context_at_the_latest(api: ollama.Client, num_predict: int) -> None:
    options = {"temperature": 0, "num_predict": num_predict}
    raw = api.generate("demo", "Once upon a time " * 70, raw=True, options=options)
    assert raw.done_reason in ("stop", "length")
    assert raw.prompt_eval_count + raw.eval_count <= 512


def test_raw_prompts_are_completed_and_others_are_chats(api: ollama.Client, client: openai.OpenAI) -> None:
    ask = {"model": "demo", "temperature": 0, "max_tokens": 24}
    text = client.completions.create(**ask, prompt="Once upon a time").choices[0].text
    assert api.generate("demo", "Once upon a time", raw=True, options=GREEDY).response == text
    system = {"role": "system", "content": "Be kind."}
    chat = client.chat.completions.create(**ask, messages=[system, *MESSAGES]).choices[0].message.content
    answer = api.generate("demo", MESSAGES[0]["content"], system="Be kind.", context=[1, 2], options=GREEDY)
    assert (answer.response, answer.context) == (chat, None)


def test_an_answer_follows_its_format(api: ollama.Client) -> None:
    for seed in range(3):
        options = {"seed": seed, "num_predict": 200}
        answer = api.chat("demo", messages=MESSAGES, format=SCHEMA, options=options)
        jsonschema.validate(json.loads(answer.message.content), SCHEMA)
    answer = api.generate("demo", "Once", format="json", options={"seed": 3, "num_predict": 300})
    assert answer.done_reason == "length" or isinstance(json.loads(answer.response), dict)


def test_lines_end_at_newlines_only(api: ollama.Client) -> None:
    """Python's clients split lines at U+2028 and U+0085, too."""
    text = "a\u2028b\x85c\u2029d 🦊"
    schema = {"const": text}
    parts = api.chat("demo", messages=MESSAGES, format=schema, options={"num_predict": 100}, stream=True)
    assert json.loads("".join(part.message.content for part in parts)) == text


def test_models_are_listed_and_described(api: ollama.Client, http: httpx.Client) -> None:
    (listed,), (running,) = api.list().models, api.ps().models
    assert (listed.model, running.model, running.name) == ("demo",) * 3
    assert (running.context_length, running.size_vram) == (512, 0)
    assert listed.size == running.size > 0
    assert listed.details.family == "qwen2"
    for name in ("demo", "demo:latest"):
        shown = api.show(name)
        assert shown.modelinfo["qwen2.context_length"] == 512
        assert shown.modelinfo["general.architecture"] == "qwen2"
        assert "<|im_start|>" in shown.template
        assert shown.capabilities == ["completion"]
    assert tuple(map(int, http.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)
    assert http.head("/").status_code == 200


def test_capabilities_are_those_of_the_template(tool_api: ollama.Client) -> None:
    assert tool_api.show("demo").capabilities == ["completion", "tools", "thinking"]


def test_embeddings_are_those_of_openais_api(api: ollama.Client, client: openai.OpenAI) -> None:
    texts = ["The old fox", "A small hen lives here."]
    expected = client.embeddings.create(model="demo", input=texts)
    vectors = np.array([one.embedding for one in expected.data])
    answer = api.embed("demo", texts)
    np.testing.assert_allclose(answer.embeddings, vectors, rtol=1e-6, atol=1e-7)
    assert answer.prompt_eval_count == expected.usage.prompt_tokens
    np.testing.assert_allclose(api.embed("demo", texts[0]).embeddings, vectors[:1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(api.embeddings("demo", texts[0]).embedding, vectors[0], rtol=1e-6, atol=1e-7)
    shortened = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(api.embed("demo", texts, dimensions=8).embeddings, shortened, rtol=1e-5)
    assert api.embed("demo", []).embeddings == api.embeddings("demo", "").embedding == []


@pytest.mark.parametrize("repeats", [520, 20_000])
def test_a_long_text_is_truncated_to_the_context(
    api: ollama.Client, client: openai.OpenAI, llm: LLM, repeats: int
) -> None:
    text = "The fox " * repeats
    ids = llm.tokenizer.encode("The fox " * 600)[:512]
    expected = client.embeddings.create(model="demo", input=ids).data[0].embedding
    np.testing.assert_allclose(api.embed("demo", text).embeddings[0], expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(ollama.ResponseError, match="context") as caught:
        api.embed("demo", text, truncate=False)
    assert caught.value.status_code == 400


def forced(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make the demo model, which was not trained on tools, write `text`."""
    sampling = OllamaParams.sampling

    def forced_sampling(self: OllamaParams, model: ServedModel) -> SamplingParams:
        self.chat.structured_outputs = StructuredOutputsFields(choice=[text])
        return sampling(self, model)

    monkeypatch.setattr(OllamaParams, "sampling", forced_sampling)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_tool_call_has_its_arguments_as_an_object(
    tool_api: ollama.Client, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    call = {"name": "weather", "arguments": {"place": "Rome"}}
    forced(monkeypatch, f"Let me see.\n<tool_call>\n{json.dumps(call)}\n</tool_call>")
    answer = tool_api.chat("demo", messages=MESSAGES, tools=TOOLS, stream=is_stream)
    parts = list(answer) if is_stream else [answer]
    (found,) = [call for part in parts for call in part.message.tool_calls or ()]
    assert (found.function.name, found.function.arguments) == ("weather", {"place": "Rome"})
    assert "".join(part.message.content for part in parts) == "Let me see."
    assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")


def test_a_function_of_python_is_a_tool_and_its_result_is_sent_back(tool_api: ollama.Client) -> None:
    def weather(place: str) -> str:
        """Look up the weather.

        Args:
            place: a town
        """
        return place

    called = {"function": {"name": "weather", "arguments": {"place": "Rome"}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [called]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    answer = tool_api.chat("demo", messages=messages, tools=[weather], options={"num_predict": 4})
    assert answer.eval_count == 4


def rendered(messages: list[dict[str, Any]], model: ServedModel, **fields: Any) -> str:
    body = ChatBody.model_validate({"model": "demo", "messages": messages, **fields})
    return OllamaParams(body, None).prompt(model, None)


def test_calls_and_results_without_ids_are_paired(llm: LLM) -> None:
    tokenizer = llm.tokenizer.with_chat_template(TEMPLATE.decode())
    model = ServedModel("demo", None, tokenizer, llm.info, {}, 1, AnswerFormat())  # type: ignore[arg-type]
    calls = [{"function": {"name": name, "arguments": {"place": place}}} for name, place in ("aX", "bY", "aZ")]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in "baa"]
    prompt = rendered([*MESSAGES, {"role": "assistant", "tool_calls": calls}, *results], model, think=False)
    assert "call00001aXcall00002bYcall00003aZ" in prompt
    assert [line.split("call")[1][:5] for line in prompt.splitlines() if line[:5] in ("acall", "bcall")] == [
        "00002",
        "00001",
        "00003",
    ]
    assert prompt.startswith("False\n")
    assert rendered(MESSAGES, model, think="high").startswith("True\n")


THOUGHTS = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Rome\\ud83e", "far": 1e999}}</tool_call>'
ANSWERS = [
    "<think>I see.</think>\n\nYes, <think> is a tag.",
    f"<think>Which?</think>Look: {CALL}\n{CALL} done",
    f"{CALL}",
    "<think>never closed",
    "a <tool_call>no call</tool_call> b <tool_c",
]


@pytest.mark.parametrize("text", ANSWERS)
def test_thoughts_and_calls_are_the_same_for_any_chunking(llm: LLM, text: str) -> None:
    model = ServedModel("demo", None, llm.tokenizer, llm.info, {}, 1, THOUGHTS)  # type: ignore[arg-type]
    body = ChatBody.model_validate({"model": "demo", "messages": MESSAGES, "tools": TOOLS})

    def builder() -> OllamaResponseBuilder:
        return OllamaResponseBuilder(OllamaParams(body, None), model, HttpRecord("", "", ""), RenderedChat("x"))

    def delta(piece: str, is_last: bool) -> CompletionDelta:
        return CompletionDelta(0, piece, [1], None, 1, "stop" if is_last else None)

    end = OutputDelta("", [delta(text, True)], True, RequestMetrics(0.0, None, 0.0), 1)
    whole = builder().full_response([OutputAccumulator("x", [1]).add(end)])["message"]
    assert json.dumps(whole, ensure_ascii=False, allow_nan=False).encode()
    generator = random.Random(text)
    for _ in range(50):
        cuts = sorted(generator.choices(range(len(text) + 1), k=generator.randrange(1, 12)))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        streaming, state = builder(), PromptState("x", [1])
        events = [
            event
            for number, piece in enumerate(pieces, 1)
            for event in streaming.delta_events(0, delta(piece, number == len(pieces)), state)
        ]
        lines = streaming.framing.encode_events([*events, *streaming.final_events([state])]).splitlines()
        messages = [json.loads(line)["message"] for line in lines]
        for key in ("content", "thinking"):
            assert "".join(message.get(key, "") for message in messages) == whole.get(key, "")
        calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        assert calls == [call["function"] for call in whole.get("tool_calls", ())]
        assert all(call["arguments"] == {"place": "Rome?", "far": "1e999"} for call in calls)


def test_without_a_prompt_a_model_is_loaded(api: ollama.Client) -> None:
    for answer in (api.generate("demo", ""), api.generate("demo", "", keep_alive="5m"), api.chat("demo", messages=[])):
        assert (answer.done, answer.done_reason) == (True, "load")
    assert api.chat("demo", messages=MESSAGES, keep_alive=0, options={"num_predict": 1}).done_reason == "length"
    with pytest.raises(ollama.ResponseError, match="loaded as long as the server runs"):
        api.generate("demo", "", keep_alive=0)


def test_pull_succeeds_for_served_models_only(api: ollama.Client) -> None:
    assert [part.status for part in api.pull("demo", stream=True)] == ["pulling manifest", "success"]
    assert api.pull("demo:latest").status == "success"
    with pytest.raises(ollama.ResponseError, match="Clients cannot add models") as caught:
        api.pull("qwen3")
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("ask", "status", "message"),
    [
        (lambda api: api.chat("qwen3", messages=MESSAGES), 404, "There is no model 'qwen3'; this server has demo."),
        (lambda api: api.show("demo:7b"), 404, "There is no model 'demo:7b'"),
        (lambda api: api.chat("demo", messages=MESSAGES, options={"num_ctx": 4096}), 400, "num_ctx is 4096, and demo"),
        (lambda api: api.chat("demo", messages=MESSAGES, options={"top_p": 7}), 400, "top_p is 7"),
        (lambda api: api.chat("demo", messages=MESSAGES, options={"repeat_penalty": -1}), 400, "repeat_penalty is -1"),
        (lambda api: api.chat("demo", messages=MESSAGES, options={"stop": 5}), 400, "options.stop"),
        (lambda api: api.generate("demo", "x", format={"type": "nothing"}), 400, "Invalid type: nothing"),
        (lambda api: api.generate("demo", "x", suffix="y"), 400, "does not support insert"),
        (lambda api: api.generate("demo", "x", template="{{ .Prompt }}"), 400, "template is not supported"),
        (lambda api: api.generate("demo", "x", images=[b"png"]), 400, "images are not supported"),
        (lambda api: api.generate("demo", "x", think=True), 400, "demo does not support thinking"),
        (lambda api: api.chat("demo", messages=MESSAGES, tools=TOOLS), 400, "demo does not support tools"),
        (lambda api: api.chat("demo", messages=[{"role": "robot", "content": "x"}]), 400, "messages.0.role"),
        (lambda api: api.generate("demo", "word " * 2000), 400, "context"),
        (lambda api: api.delete("demo"), 404, "There is no /api/delete here"),
    ],
)
def test_errors_are_the_exceptions_of_the_client(
    api: ollama.Client, ask: Callable[[ollama.Client], object], status: int, message: str
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        ask(api)
    assert caught.value.status_code == status
    assert message in caught.value.error
    assert not caught.value.error.startswith("{"), "the client has found the field `error`"


@pytest.mark.parametrize("path", ["chat", "generate", "embed", "embeddings", "show", "pull"])
def test_malformed_bodies_are_errors_in_ollamas_format(http: httpx.Client, path: str) -> None:
    for body in (b'{"model":5}', b'{"model":""}', *(HOSTILE[name] for name in MALFORMED)):
        answer = http.post(f"/api/{path}", content=body)
        assert answer.status_code in (400, 404), answer.text
        assert set(answer.json()) == {"error"}
        assert 10 < len(answer.json()["error"]) < 400


def test_a_missing_key_is_a_401_in_ollamas_format(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["secret"]))
    answer = http.get("/api/tags")
    assert (answer.status_code, set(answer.json())) == (401, {"error"})
    api = ollama.Client(host=str(http.base_url), headers={"Authorization": "Bearer secret"})
    assert [model.model for model in api.list().models] == ["demo"]
    with pytest.raises(ollama.ResponseError, match="admin key") as caught:
        api.generate("demo", "", keep_alive="0s")
    assert caught.value.status_code == 403


def test_an_error_during_a_stream_is_its_last_line(runtime: Runtime) -> None:
    llm = LLM(device="cpu", dtype="float32", runtime=runtime, max_model_len=512)
    with serving(llm, limits=Limits(request_timeout_s=0.2)) as address, paused_engine(llm):
        parts = ollama.Client(host=address).chat("demo", messages=MESSAGES, stream=True)
        assert next(parts).message.content
        with pytest.raises(ollama.ResponseError, match="not finished"):
            list(parts)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Held:
    path = str(copy_demo(tmp_path_factory.mktemp("models") / "demo"))
    config = EngineConfig(device="cpu", dtype="float32", max_model_len=256)
    return Held(engine_inprocess("slow", path, config, runtime=runtime))


@pytest.fixture(scope="module")
def on_demand(held: Held) -> Iterator[str]:
    """The address of a server that loads its model at the first request, if `held` lets it."""
    with serving(ModelPool([ModelSource("slow", held.open, max_model_len=256, ttl_s=300)], max_loaded=1)) as address:
        yield address


def test_a_model_on_demand_is_loaded_and_unloaded(on_demand: str, held: Held) -> None:
    held.may_load.set()
    api = ollama.Client(host=on_demand)
    (listed,) = api.list().models
    assert (listed.model, listed.details.family) == ("slow", "")
    assert api.show("slow").modelinfo["unknown.context_length"] == 256
    assert list(api.ps().models) == [], "neither listing nor describing it loads it"
    loading = api.chat("slow:latest", messages=MESSAGES, options={"num_predict": 2})
    assert loading.total_duration > loading.load_duration > 0
    (running,) = api.ps().models
    assert 0 < (running.expires_at - datetime.now(UTC)).total_seconds() <= 300
    for keep_alive in (0, "0s"):
        assert api.generate("slow", "", keep_alive=keep_alive).done_reason == "unload"
        assert list(api.ps().models) == []
        assert api.chat("slow", messages=[], keep_alive=-1).done_reason == "load"
        assert [model.model for model in api.ps().models] == ["slow"]


def test_a_stream_that_waits_for_its_model_is_lines_of_json(
    on_demand: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps the connection open meanwhile is white space before the first object."""
    monkeypatch.setattr("aethermind.server.openai.serving._LOADING_COMMENT_INTERVAL_S", 0.01)
    ollama.Client(host=on_demand).generate("slow", "", keep_alive=0)
    held.may_load.clear()
    body = {"model": "slow", "messages": MESSAGES, "options": {"num_predict": 3}}
    received = []
    with httpx.Client(timeout=30) as http, http.stream("POST", f"{on_demand}/api/chat", json=body) as answer:
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        for piece in answer.iter_bytes():
            received.append(piece)
            held.may_load.set()
    assert received[0] == b" "
    objects = [json.loads(line) for line in b"".join(received).splitlines()]
    assert [answer["done"] for answer in objects] == [False] * (len(objects) - 1) + [True]
