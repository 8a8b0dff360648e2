"""Several models behind one server that may load only some of them at once, seen by its clients."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving
from typer.testing import CliRunner

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cli.app import app
from aethermind.cli.models import estimate_memory
from aethermind.cli.served_models import ListedModel, listed_models, model_pool
from aethermind.cli.settings import ModelPoolOptions, ProcessOptions
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import RestartPolicy
from aethermind.engine.process.supervisor import Child, LaunchProcess
from aethermind.errors import ConfigError, InvalidArgumentError, SettingsError
from aethermind.server import ModelPool, ModelSource, ServedModel, Tenants
from aethermind.server.pool_entry import OpenModel, ProgressCallback, engine_inprocess, engine_process
from aethermind.text import Tokenizer, tokenizer_cache, tokenizer_files
from aethermind.text.mapped_bpe import MappedBpe

THETAS = {"one": 1e4, "two": 1e3, "three": 100.0, "four": 5.0}
"""Bases of the rotary frequencies: they make models that answer differently from one checkpoint."""

SIZES = {"device": "cpu", "dtype": "float32", "max_model_len": 256, "num_threads": 1}
ADMIN = {"Authorization": "Bearer master"}
TEXTS = ("Once upon a time", "The fox said", "A hen and")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, theta in THETAS.items():
        copy_demo(folder / name, {"rope_theta": theta})
    return folder


@pytest.fixture(scope="module")
def lone_answers(folder: Path, runtime: Runtime) -> dict[str, list[str]]:
    """What each model answers alone."""
    found, params = {}, SamplingParams(max_tokens=12, temperature=0.0)
    for name in THETAS:
        with closing(LLM(folder / name, runtime=runtime, **SIZES)) as llm:
            found[name] = [output.outputs[0].text for output in llm.generate(list(TEXTS), params)]
    assert len({tuple(texts) for texts in found.values()}) == len(THETAS), "the models differ"
    return found


def pool_of(folder: Path, engine: str = "process", **options: Any) -> ModelPool:
    pool = ModelPoolOptions(models_dir=str(folder), **options)
    return model_pool(listed_models(None, None, pool), SIZES, pool, ProcessOptions(engine=engine), None)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving(pool_of(folder, models_max=2), admin_key="master") as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_concurrent_requests_get_the_answers_of_lone_models(
    client: openai.OpenAI, lone_answers: dict[str, list[str]]
) -> None:
    def ask(number: int) -> tuple[str, int, str]:
        name, index = list(THETAS)[number % len(THETAS)], number // len(THETAS) % len(TEXTS)
        about: Any = {"model": name, "prompt": TEXTS[index], "max_tokens": 12, "temperature": 0}
        if number % 2:
            parts = client.completions.create(**about, stream=True)
            return name, index, "".join(part.choices[0].text for part in parts)
        return name, index, client.completions.create(**about).choices[0].text

    with ThreadPoolExecutor(12) as threads:
        for name, index, text in threads.map(ask, range(24)):
            assert text == lone_answers[name][index]
    models = {model.id: model.status for model in client.models.list()}  # type: ignore[attr-defined]
    assert list(models) == sorted(THETAS)
    assert sum(status["value"] == "loaded" for status in models.values()) <= 2
    assert all(status["num_loads"] >= 1 for status in models.values())


@pytest.mark.parametrize("launch", [Child.launch, None], ids=["on-demand", "always-loaded"])
def test_a_model_on_demand_maps_its_vocabulary_until_much_text_is_encoded(
    folder: Path, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: LaunchProcess | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", 0)
    with pytest.MonkeyPatch.context() as patch:  # its tables are written now and not at exit
        patch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=lambda write: write()))
        patch.setattr(tokenizer_cache, "_pending", {})
        alone = Tokenizer.from_directory(folder / "one")
    options: dict[str, Any] = {"policy": RestartPolicy(0), "runtime": runtime, "launch": launch}
    opened = engine_process("one", str(folder / "one"), EngineConfig(**SIZES), **options)

    async def scenario() -> None:
        async with opened(lambda *_: None) as model:
            fast: Any = model.tokenizer._fast
            assert isinstance(fast, MappedBpe) == (launch is not None)
            for text in (*TEXTS, "Once " * 20_000):
                assert launch is None or fast._library_tokenizer is None
                assert list((await model.engine.read(text)).token_ids) == alone.encode(text)
            assert launch is None or fast._library_tokenizer is not None

    asyncio.run(scenario())


class Held:
    """A model whose loading a test holds up."""

    def __init__(self, open_model: OpenModel) -> None:
        self._open = open_model
        self.may_load = threading.Event()

    @asynccontextmanager
    async def open(self, on_progress: ProgressCallback) -> AsyncIterator[ServedModel]:
        on_progress(2, 4)
        await asyncio.to_thread(self.may_load.wait)
        async with self._open(on_progress) as model:
            yield model


@asynccontextmanager
async def broken(_: ProgressCallback) -> AsyncIterator[ServedModel]:
    raise ConfigError("config.json has no architecture.")
    yield


@pytest.fixture(scope="module")
def held(folder: Path, runtime: Runtime) -> Held:
    return Held(engine_inprocess("slow", str(folder / "one"), EngineConfig(**SIZES), runtime=runtime))


@pytest.fixture(scope="module")
def http(folder: Path, runtime: Runtime, held: Held) -> Iterator[httpx.Client]:
    """A client with the admin key of a server with one place for `slow`, whose loading is held, `two` and `broken`."""
    two = engine_inprocess("two", str(folder / "two"), EngineConfig(**SIZES), runtime=runtime)
    sources = [
        ModelSource("slow", held.open, max_model_len=64),
        ModelSource("two", two, max_model_len=256),
        ModelSource("broken", broken),
    ]
    with (
        serving(ModelPool(sources, max_loaded=1), admin_key="master", tenants=Tenants.of_keys(["user"])) as address,
        httpx.Client(base_url=address, timeout=60, headers={"Authorization": "Bearer user"}) as http,
    ):
        yield http


def ask(name: str, **more: Any) -> dict[str, Any]:
    return {"model": name, "prompt": TEXTS[0], "max_tokens": 12, "temperature": 0, **more}


def test_a_stream_that_waits_for_its_model_begins_with_comments(
    http: httpx.Client, held: Held, monkeypatch: pytest.MonkeyPatch, lone_answers: dict[str, list[str]]
) -> None:
    monkeypatch.setattr("aethermind.server.openai.serving._LOADING_COMMENT_INTERVAL_S", 0.01)
    lines: list[str] = []
    with http.stream("POST", "/v1/completions", json=ask("slow", stream=True)) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            lines.append(line)
            held.may_load.set()
    assert lines[0] == ": loading the model 50%"
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]", data
    assert all("choices" in event for event in data), data
    assert "".join(json.loads(event)["choices"][0]["text"] for event in data) == lone_answers["one"][0]


def test_a_client_that_leaves_while_its_model_loads_leaves_nothing_behind(
    http: httpx.Client, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aethermind.server.openai.serving._LOADING_COMMENT_INTERVAL_S", 0.01)
    assert http.post("/admin/models/unload", json={"model": "slow"}, headers=ADMIN).status_code == 200
    held.may_load.clear()
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"model": "slow", "stream": True}) as response:
        assert next(response.iter_lines()) == ": loading the model 50%"
    held.may_load.set()
    assert http.post("/admin/models/load", json={"model": "slow"}, headers=ADMIN).status_code == 200
    while status_of(http, "slow")["num_requests"]:
        pass
    text = http.get("/metrics").text
    assert "aethermind_num_open 0.0" in text
    assert 'aethermind_model_loaded{model_name="slow"} 1.0' in text
    assert 'aethermind_model_loaded{model_name="two"} 0.0' in text


@pytest.fixture
def unloaded(http: httpx.Client, held: Held) -> Iterator[None]:
    """The model `slow` is not loaded, and its loading is held until the test ends."""
    http.post("/admin/models/unload", json={"model": "slow"}, headers=ADMIN)
    held.may_load.clear()
    yield
    held.may_load.set()
    assert http.post("/admin/models/load", json={"model": "slow"}, headers=ADMIN).status_code == 200
    while status_of(http, "slow")["num_requests"]:
        pass


def cancelled_while_loading(http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """The response to a request for `slow` that is cancelled by its client's id while the model is loaded."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(http.post, path, json={"model": "slow", **body}, headers={"X-Request-Id": "mine"})
        while not status_of(http, "slow")["num_requests"]:
            pass
        assert http.delete("/v1/requests/mine").json() == {"id": "mine", "object": "request", "cancelled": True}
        response = waiting.result()
    assert http.delete("/v1/requests/mine").status_code == 404
    assert status_of(http, "slow")["num_requests"] == 0
    return response


@pytest.mark.usefixtures("unloaded")
def test_a_request_is_cancelled_while_its_model_loads(http: httpx.Client) -> None:
    completion = {"prompt": [TEXTS[0], TEXTS[1]], "n": 2, "echo": True, "logprobs": 1}
    choices = cancelled_while_loading(http, "/v1/completions", completion).json()["choices"]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (index, "", "abort") for index in range(4)
    ]
    chat = cancelled_while_loading(http, "/v1/chat/completions", CHAT).json()
    assert (chat["object"], chat["model"], chat["usage"]["total_tokens"]) == ("chat.completion", "slow", 0)
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert chat["choices"][0]["finish_reason"] == "abort"
    response = cancelled_while_loading(http, "/v1/responses", {"input": "Hello"}).json()
    assert (response["status"], response["output"][0]["status"]) == ("cancelled", "incomplete")
    message = cancelled_while_loading(http, "/v1/messages", CHAT).json()
    assert (message["type"], message["content"], message["stop_reason"]) == ("message", [], None)
    embeddings = cancelled_while_loading(http, "/v1/embeddings", {"input": list(TEXTS)})
    assert (embeddings.status_code, embeddings.json()["error"]["code"]) == (499, "request_cancelled")
    assert status_of(http, "slow")["value"] == "loading", "it goes on"


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("begins", [False, True])
def test_a_stream_is_cancelled_while_its_model_loads(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    monkeypatch.setattr("aethermind.server.openai.serving._LOADING_COMMENT_INTERVAL_S", 0.01 if begins else 600)
    lines = cancelled_while_loading(http, "/v1/chat/completions", CHAT | {"stream": True}).text.splitlines()
    assert lines[-2] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-2] if line.startswith("data: ")]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "abort"]
    text = cancelled_while_loading(http, "/v1/responses", {"input": "Hello", "stream": True}).text
    assert text.rsplit("event: ", 1)[1].startswith("response.incomplete\ndata: ")
    assert json.loads(text.rsplit("data: ", 1)[1])["response"]["status"] == "cancelled"
    text = cancelled_while_loading(http, "/v1/messages", CHAT | {"stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert events[1]["delta"]["stop_reason"] is None


def status_of(http: httpx.Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/models/{name}").json()["status"]
    return found


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 2, "temperature": 0}


def test_every_endpoint_loads_its_model(http: httpx.Client, held: Held) -> None:
    held.may_load.set()
    for method, path, body in (
        ("POST", "/v1/completions", ask("NAME")),
        ("POST", "/v1/chat/completions", CHAT | {"model": "NAME"}),
        ("POST", "/v1/responses", {"model": "NAME", "input": "Hello", "max_output_tokens": 2}),
        ("POST", "/v1/responses", {"model": "NAME", "input": "Hello", "max_output_tokens": 2, "stream": True}),
        ("POST", "/v1/messages", CHAT | {"model": "NAME"}),
        ("POST", "/v1/messages", CHAT | {"model": "NAME", "stream": True}),
        ("POST", "/v1/messages/count_tokens", {"model": "NAME", "messages": CHAT["messages"]}),
        ("POST", "/v1/embeddings", {"model": "NAME", "input": "Hello"}),
        ("POST", "/tokenize", {"model": "NAME", "prompt": "Hello"}),
        ("POST", "/detokenize", {"model": "NAME", "tokens": [1, 2]}),
        ("GET", "/v1/sessions?model=NAME", None),
    ):
        for name in ("slow", "two"):
            text = json.dumps(body).replace("NAME", name) if body else None
            answer = http.request(method, path.replace("NAME", name), content=text)
            assert answer.status_code == 200, (path, answer.text)
            assert status_of(http, name)["value"] == "loaded"
    assert status_of(http, "slow")["value"] == "unloaded"


def test_an_unknown_model_is_a_404_with_the_names_that_exist(http: httpx.Client) -> None:
    for path, body in (("/v1/completions", ask("three")), ("/v1/chat/completions", CHAT | {"model": "three"})):
        for is_stream in (False, True):
            answer = http.post(path, json=body | {"stream": is_stream})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert answer.json()["error"]["message"] == "There is no model 'three'; this server has slow, two, broken."


def test_a_model_that_cannot_be_loaded_is_a_503_and_tried_again_after_a_back_off(http: httpx.Client) -> None:
    for is_stream in (False, True):
        answer = http.post("/v1/completions", json=ask("broken", stream=is_stream))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_load_failed")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "broken could not be loaded: config.json has no architecture." in answer.json()["error"]["message"]
    assert status_of(http, "broken")["value"] == "failed"
    assert status_of(http, "broken")["error"] == "config.json has no architecture."
    assert http.get("/ready").status_code == 200, "the others are served"


def test_administrators_load_and_unload_models(http: httpx.Client, held: Held) -> None:
    held.may_load.set()
    for path in ("/admin/models/load", "/admin/models/unload"):
        assert http.post(path, json={"model": "two"}).status_code == 401, "an API key does not open it"
        assert http.post(path, json={"model": "three"}, headers=ADMIN).status_code == 404
    loaded = http.post("/admin/models/load", json={"model": "two"}, headers=ADMIN).json()
    assert (loaded["id"], loaded["status"]["value"], loaded["max_model_len"]) == ("two", "loaded", 256)
    assert loaded["status"]["memory_bytes"] > 0
    unloaded = http.post("/admin/models/unload", json={"model": "two"}, headers=ADMIN).json()
    assert (unloaded["id"], unloaded["status"]["value"]) == ("two", "unloaded")
    assert http.post("/v1/completions", json=ask("two")).status_code == 200, "a request loads it again"


def test_ps_shows_what_is_loaded(http: httpx.Client, held: Held) -> None:
    held.may_load.set()
    for name in ("broken", "two"):  # to try the first may take the place of another
        http.post("/v1/completions", json=ask(name))
    url = ("--url", str(http.base_url), "--api-key", "user")
    records = json.loads(run("ps", *url, "--json").stdout)["models"]
    assert [(record["id"], record["status"]["value"]) for record in records] == [("two", "loaded")]
    everything = run("ps", *url, "--all")
    assert [line.split()[:2] for line in everything.stdout.splitlines()[1:]] == [
        ["slow", "unloaded"],
        ["two", "loaded"],
        ["broken", "failed"],
    ]
    http.post("/admin/models/unload", json={"model": "two"}, headers=ADMIN)
    assert run("ps", *url).stdout == "No model is loaded. `aethermind ps --all` lists those that can be.\n"
    wrong = run("ps", "--url", str(http.base_url))
    assert (wrong.exit_code, "wants an API key" in wrong.stderr) == (2, True)


def run(*words: str) -> Any:
    """The result of a command, in this process."""
    return CliRunner().invoke(app, list(words))


def test_models_that_load_at_start_are_not_unloaded_by_hand(llm: LLM) -> None:
    with serving(llm, admin_key="master") as address:
        answer = httpx.post(f"{address}/admin/models/unload", json={"model": "demo"}, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_pinned")


def test_lists_of_models(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        f"models:\n  tall: {{path: {folder / 'one'}, max_model_len: 512, ttl: 5, load_on_startup: true}}\n"
        "  plain: demo\n"
    )
    found = listed_models(None, None, ModelPoolOptions(models_file=str(file)))
    assert found == {
        "tall": ListedModel(str(folder / "one"), {"max_model_len": 512}, 5, True),
        "plain": ListedModel("demo"),
    }
    both = listed_models(["x=demo"], None, ModelPoolOptions(models_file=str(file), models_dir=str(folder)))
    assert list(both) == ["x", "tall", "plain", "four", "one", "three", "two"]
    with pytest.raises(InvalidArgumentError, match="Two models are called 'one', at least one of them by --models-dir"):
        listed_models(["one=demo"], None, ModelPoolOptions(models_dir=str(folder)))


def test_a_relative_path_stays_a_path_when_its_model_is_gone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model").symlink_to(folder / "one")
    monkeypatch.chdir(tmp_path)
    for given in (["m=here/model"], None):
        models = listed_models(given, None, ModelPoolOptions(models_dir=None if given else "here"))
        assert [model.path for model in models.values()] == [str(tmp_path / "here" / "model")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models: [a]", "should have one section, `models`"),
        ("models: {a: {size: 1}}", "a should be a model, or a mapping with `path`"),
        ("models: {a: {path: demo, quantisation: int8}}", "unknown field 'quantisation'.*quantization"),
        ("models: {a: {path: demo, max_model_len: -1}}", "a: max_model_len should be a positive integer"),
        ("models: {a: {path: demo, ttll: 3}}", "unknown field 'ttll'; did you mean ttl"),
        ("models: {'': demo}", "a model without a name"),
        ("models: {null: demo}", "a model without a name"),
        ("models: {a: ''}", "a should be a model, or a mapping with `path`"),
        ("models: {a: {path: demo, ttl: 0}}", "a: ttl should be a number of seconds above 0"),
        ("models: {a: {path: demo, load_on_startup: 1}}", "load_on_startup should be true or false"),
    ],
)
def test_mistakes_in_a_file_of_models(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=message):
        listed_models(None, None, ModelPoolOptions(models_file=str(file)))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("dtype", "bfloat61", "Unknown dtype 'bfloat61'"),
        ("device", "abacus", "Unknown device 'abacus'"),
        ("device", "cpu:99", "Device 'cpu:99' does not exist"),
        ("quantization", "int5", "int5"),
        ("lm_head_quantization", "int5", "int5"),
        ("scheduling_policy", "fairest", "Unknown scheduling policy 'fairest'"),
        ("scheduling_policy", "priority:age=1", "has no parameter 'age'"),
        ("speculative_method", "guess", "guess"),
        ("executor", "nowhere", "nowhere"),
        ("kv_store", "tape:/a", "tape"),
    ],
)
def test_options_that_are_wrong_for_every_model_are_refused_at_start(
    folder: Path, tmp_path: Path, option: str, value: str, message: str
) -> None:
    serve = ("serve", "--port", "0", "--engine", "inprocess")
    refused = [run(*serve, "--models-dir", str(folder), f"--{option.replace('_', '-')}", value)]
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  good: demo\n  wrong: {{path: demo, {option}: '{value}'}}\n")
    refused.append(run(*serve, "--models-file", str(file)))
    for result in refused:
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), result.stderr
        assert message in result.stderr
    assert "Error: wrong: " in refused[1].stderr


def test_models_share_a_budget_of_memory(folder: Path, lone_answers: dict[str, list[str]]) -> None:
    options = ModelPoolOptions(models_dir=str(folder))

    params = SamplingParams(temperature=0.0, max_tokens=12)

    async def num_loaded(memory: str) -> tuple[list[int], int]:
        pool = model_pool(
            listed_models(None, None, options), {**SIZES, "memory": memory}, options, ProcessOptions("inprocess"), None
        )
        found = []
        async with pool:
            for name in ("one", "two", "three"):
                async with pool.lease(name) as model:
                    output = [part async for part in model.engine.generate(TEXTS[0], params)]
                    assert output[-1].outputs[0].text == lone_answers[name][0]
                found.append(len(pool.base_models))
            return found, max(status.num_bytes for status in pool.statuses())

    numbers, num_bytes = asyncio.run(num_loaded("1000GB"))
    assert numbers == [1, 2, 3]
    assert asyncio.run(num_loaded(str(num_bytes * 5 // 2)))[0] == [1, 2, 2]


def test_fifty_names_behind_one_port(
    tmp_path: Path, runtime: Runtime, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aethermind.engine.loading.memory_estimate.resident_bytes", lambda: 50_000_000)
    sizes = {**SIZES, "max_model_len": 32, "max_num_seqs": 1, "max_num_batched_tokens": 32}
    plan = estimate_memory(runtime, runtime.models.locate("demo"), EngineConfig(**sizes))
    num_bytes = plan["total_bytes"] + sum(plan["host_parts"].values())
    names = [f"name-{number}" for number in range(50)]
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": dict.fromkeys(names, "demo")}))
    options = ModelPoolOptions(models_file=str(file))
    engine_options = {**sizes, "memory": str(num_bytes * 7 // 2)}
    pool = model_pool(listed_models(None, None, options), engine_options, options, ProcessOptions("inprocess"), None)
    params = SamplingParams(max_tokens=4, temperature=0.0)
    expected = llm.generate([TEXTS[0]], params)[0].outputs[0].text
    with serving(pool) as address, httpx.Client(base_url=address, timeout=60) as http:

        def loaded() -> set[str]:
            models = http.get("/v1/models").json()["data"]
            assert [model["id"] for model in models] == names
            return {model["id"] for model in models if model["status"]["value"] == "loaded"}

        assert loaded() == set()
        for number, name in enumerate(names):
            answer = http.post("/v1/completions", json=ask(name, max_tokens=4)).json()
            assert (answer["model"], answer["choices"][0]["text"]) == (name, expected)
            if number % 10 == 9:
                assert loaded() == set(names[number - 2 : number + 1]), "three fit"
        for name in (names[-3], names[0]):
            http.post("/v1/completions", json=ask(name, max_tokens=4)).raise_for_status()
        assert loaded() == {names[-3], names[-1], names[0]}, "the one that was used least recently is evicted"
        num_loads = [status_of(http, name)["num_loads"] for name in names]
    assert num_loads == [2, *[1] * 49]


def test_a_directory_without_usable_models(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has no models"):
        listed_models(None, None, ModelPoolOptions(models_dir=str(tmp_path)))
    (tmp_path / "split-00001-of-00002.gguf").touch()
    (tmp_path / "split-00002-of-00002.gguf").touch()
    (tmp_path / "good").symlink_to(folder / "one")
    assert list(listed_models(None, None, ModelPoolOptions(models_dir=str(tmp_path)))) == ["good", "split"]
    assert pool_of(tmp_path).names == ("good",), "one that cannot be read is left out"
