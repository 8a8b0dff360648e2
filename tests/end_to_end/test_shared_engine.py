"""One engine and many users at once: threads with its LLM, tasks of several event loops; each gets the lone answer."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing
from itertools import islice
from typing import Any

import pytest
from tests.adapters import linear_shapes, write_adapter
from tests.end_to_end.conftest import assert_idle

from aethermind import LLM, AsyncEngine, RequestOptions, RequestOutput, Runtime, SamplingParams, StructuredOutputs
from aethermind.engine.engine import Engine
from aethermind.engine.requests.output_delta import OutputSource
from aethermind.errors import AetherMindError, EngineDeadError, InvalidArgumentError

NUM_ROUNDS = 1
PROMPTS = [f"Once upon a time there was a {animal}" for animal in ("fox", "bear", "frog", "hen")]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=7, max_tokens=10, ignore_eos=True)
SEVERAL = SamplingParams(temperature=0.9, seed=5, n=2, max_tokens=6, ignore_eos=True)
CHOSEN = SamplingParams(max_tokens=12, seed=3, structured_outputs=StructuredOutputs(choice=["yes indeed", "no"]))
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
TALK = [{"role": "user", "content": "Tell me a story."}]
TEMPLATE = "{% for message in messages %}{{ message.content }} Once upon a time{% endfor %}"

Way = Callable[[LLM], Any]
AsyncWay = Callable[[AsyncEngine], Awaitable[Any]]


@pytest.fixture(scope="module")
def shared(open_demo: Callable[..., LLM], runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The demo model with an adapter, a small batch, and a small KV cache."""
    config = json.loads((runtime.open_source("demo").path / "config.json").read_text())
    adapter = write_adapter(tmp_path_factory.mktemp("rhymes"), linear_shapes(config), size=0.5)
    with open_demo(adapters={"rhymes": adapter}, max_num_seqs=6, num_kv_blocks=40) as llm:
        yield llm


def answers(outputs: list[RequestOutput]) -> list[list[tuple[str, list[int]]]]:
    return [[(one.text, one.token_ids) for one in output.outputs] for output in outputs]


def left_early(llm: LLM) -> Any:
    with closing(llm.stream(PROMPTS[0], ENDLESS)) as states:  # type: ignore[type-var]
        return [bool(state.outputs[0].token_ids) for state in islice(states, 2)]


WAYS: dict[str, Way] = {
    "generate": lambda llm: answers(llm.generate(PROMPTS, GREEDY)),
    "sampled": lambda llm: answers(llm.generate(PROMPTS[0], SAMPLED)),
    "several": lambda llm: answers(llm.generate(PROMPTS[1], SEVERAL)),
    "adapted": lambda llm: answers(llm.generate(PROMPTS[2], GREEDY, adapter="rhymes")),
    "chosen": lambda llm: answers(llm.generate(PROMPTS[3], CHOSEN)),
    "scored": lambda llm: answers(llm.generate(PROMPTS[3], SamplingParams(max_tokens=2, seed=1, prompt_logprobs=0))),
    "chat": lambda llm: answers(llm.chat(TALK, GREEDY, chat_template=TEMPLATE)),
    "stream": lambda llm: answers([[*llm.stream(PROMPTS[1], GREEDY)][-1]]),
    "embed": lambda llm: llm.embed(PROMPTS[0], pooling="mean")[0].tobytes(),
    "left": left_early,
}


async def last(engine: AsyncEngine, prompt: str, params: SamplingParams, **options: Any) -> Any:
    states = [state async for state in engine.generate(prompt, params, **options)]
    return answers([states[-1]])


async def left_early_there(engine: AsyncEngine) -> Any:
    async with aclosing(engine.generate(PROMPTS[0], ENDLESS)) as states:
        return len((await anext(states)).outputs[0].token_ids) > 0


async def aborted(engine: AsyncEngine) -> Any:
    name = f"mine-{id(asyncio.current_task())}"
    async with aclosing(engine.generate(PROMPTS[0], ENDLESS, request_id=name)) as states:
        await anext(states)
        engine.abort(name)
        return [state async for state in states][-1].outputs[0].finish_reason


async def cancelled(engine: AsyncEngine) -> Any:
    task = asyncio.create_task(last(engine, PROMPTS[0], ENDLESS))
    await asyncio.sleep(0)
    task.cancel()
    return await asyncio.gather(task, return_exceptions=True) != []


ASYNC_WAYS: dict[str, tuple[AsyncWay, str | object]] = {
    "all": (lambda engine: asyncio.gather(*(last(engine, one, GREEDY) for one in PROMPTS)), "generate"),
    "sampled": (lambda engine: last(engine, PROMPTS[0], SAMPLED), "sampled"),
    "several": (lambda engine: last(engine, PROMPTS[1], SEVERAL), "several"),
    "adapted": (lambda engine: last(engine, PROMPTS[2], GREEDY, options=RequestOptions(adapter="rhymes")), "adapted"),
    "chosen": (lambda engine: last(engine, PROMPTS[3], CHOSEN), "chosen"),
    "held": (lambda engine: last(engine, PROMPTS[1], GREEDY, hold_s=0.01), "stream"),
    "left": (left_early_there, True),
    "aborted": (aborted, "abort"),
    "cancelled": (cancelled, True),
}


def rotated(names: Any, start: int) -> list[str]:
    names = [*names] * (NUM_ROUNDS + 1)
    return names[start : start + len(names) * NUM_ROUNDS // (NUM_ROUNDS + 1)]


def test_sixteen_concurrent_users_get_the_answers_of_single_users(shared: LLM) -> None:
    """Eight threads with the LLM, and four tasks in each of two event loops, in every way that there is."""
    expected = {name: way(shared) for name, way in WAYS.items()}
    begin = threading.Barrier(10)

    def in_thread(number: int) -> None:
        begin.wait()
        for name in rotated(WAYS, number):
            assert WAYS[name](shared) == expected[name], name

    async def in_task(engine: AsyncEngine, number: int) -> None:
        for name in rotated(ASYNC_WAYS, number):
            way, wanted = ASYNC_WAYS[name]
            found = await way(engine)
            if name == "all":
                found = [one for outputs in found for one in outputs]
            assert found == (expected.get(wanted, wanted) if isinstance(wanted, str) else wanted), name

    async def in_loop(first: int) -> None:
        async with AsyncEngine(shared.engine) as engine:
            begin.wait()
            await asyncio.gather(*(in_task(engine, first + number) for number in range(4)))
            await engine.drain()

    with ThreadPoolExecutor(10) as pool:
        users = [pool.submit(in_thread, number) for number in range(8)]
        users += [pool.submit(lambda first=first: asyncio.run(in_loop(first))) for first in (0, 4)]
        for user in users:
            user.result()
    assert_idle(shared)
    assert {name: way(shared) for name, way in WAYS.items()} == expected


@asynccontextmanager
async def with_one_open(llm: LLM) -> AsyncIterator[tuple[AsyncEngine, Any]]:
    """An AsyncEngine, and a request of it that goes on."""
    async with AsyncEngine(llm.engine) as engine, aclosing(engine.generate(PROMPTS[0], ENDLESS)) as states:
        await anext(states)
        yield engine, states


def test_generate_while_a_stream_is_open(demo: LLM) -> None:
    """The first thing that is tried in a notebook."""
    expected = answers(demo.generate(PROMPTS, SAMPLED))

    async def scenario() -> None:
        async with with_one_open(demo) as (_, states):
            for _ in range(5):
                assert answers(await asyncio.to_thread(demo.generate, PROMPTS, SAMPLED)) == expected
                assert answers(demo.generate(PROMPTS, SAMPLED)) == expected, "also where the loop waits for it"
            assert (await anext(states)).outputs[0].token_ids

    asyncio.run(scenario())


def test_leaving_an_async_engine_ends_its_requests_and_no_others(demo: LLM) -> None:
    async def scenario() -> None:
        async with AsyncEngine(demo.engine) as kept:
            async with AsyncEngine(demo.engine) as left:
                lost = left.generate(PROMPTS[0], ENDLESS)
                await anext(lost)
                going_on = asyncio.create_task(last(kept, PROMPTS[1], GREEDY))
            with pytest.raises(EngineDeadError, match="closed"):
                await anext(lost)
            assert await going_on == answers(demo.generate(PROMPTS[1], GREEDY))
            assert not demo.engine.has_unfinished, "no request is left open"

    asyncio.run(scenario())
    assert_idle(demo)


def test_a_request_id_belongs_to_its_user_while_it_is_open(demo: LLM) -> None:
    """A request that is refused for its id, or comes too late to be aborted, does not end the one that has it."""

    async def scenario() -> None:
        async with AsyncEngine(demo.engine) as one, AsyncEngine(demo.engine) as other:
            states = one.generate(PROMPTS[0], ENDLESS, request_id="mine")
            await anext(states)
            with pytest.raises(InvalidArgumentError, match="in use"):
                await last(other, PROMPTS[1], GREEDY, request_id="mine")
            assert not other.abort("mine")
            await other.call(lambda _: None)
            assert demo.engine.has_unfinished
            await states.aclose()
            await one.call(lambda _: None)
            expected = answers(demo.generate(PROMPTS[1], GREEDY))
            assert await last(other, PROMPTS[1], GREEDY, request_id="mine") == expected
            numbered = one.generate(PROMPTS[0], ENDLESS, request_id=str(int(demo.engine.free_id()) + 1))
            await anext(numbered)
            assert len(demo.generate(PROMPTS, GREEDY)) == len(PROMPTS), "names of its own do not collide"
            await numbered.aclose()
            await one.call(lambda _: None)

    asyncio.run(scenario())
    assert_idle(demo)


def test_closing_the_llm_ends_requests_of_other_users(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo()
    stream = llm.stream(PROMPTS[1], ENDLESS)
    next(stream)

    async def scenario() -> None:
        async with AsyncEngine(llm.engine) as engine:
            states = engine.generate(PROMPTS[0], ENDLESS)
            await anext(states)
            llm.close()
            with pytest.raises(EngineDeadError, match="closed"):
                async for _ in states:
                    pass
            with pytest.raises(EngineDeadError, match="closed"):
                await last(engine, PROMPTS[0], GREEDY)
        with pytest.raises(EngineDeadError, match="closed"):
            await AsyncEngine(llm.engine).__aenter__()

    asyncio.run(scenario())
    with pytest.raises(AetherMindError, match="closed"):
        for _ in stream:
            pass


def test_a_call_of_a_closed_llm_is_an_error_of_one_sentence(open_demo: Callable[..., LLM]) -> None:
    with open_demo() as llm:
        runner = llm.engine.runner
    llm.close()
    asked: list[Callable[[], Any]] = [
        lambda: llm.generate("hi"),
        lambda: llm.embed("hi"),
        lambda: llm.chat(TALK, chat_template=TEMPLATE),
        lambda: next(llm.stream("hi")),
        lambda: llm.hooks,
        lambda: llm.sampling_defaults,
        lambda: llm.engine.step(),
        lambda: llm.engine.add_request("a", [5], GREEDY),
        lambda: llm.engine.adjust(max_num_seqs=1),
        lambda: llm.engine.prepare(CHOSEN),
        lambda: llm.engine.runner,
        lambda: llm.engine.cache,
    ]
    for ask in asked:
        with pytest.raises(AetherMindError, match=r"was closed; [^.]*\.$"):
            ask()
    assert llm.engine.abort("a") is None
    assert not hasattr(llm.engine, "no_such_thing")
    assert llm.info.architecture
    assert runner.executor.host_inputs, "a reference keeps its memory alive"


def test_closing_waits_for_the_step_of_another_thread(
    open_demo: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_demo()
    is_in_step, may_go_on, done = threading.Event(), threading.Event(), []
    advance = llm.engine.advance

    def slow() -> Sequence[OutputSource]:
        with llm.engine.lock:
            is_in_step.set()
            assert may_go_on.wait(60)
            growths = advance()
            done.append(not llm.engine.is_closed)
            return growths

    monkeypatch.setattr(llm.engine, "advance", slow)
    with ThreadPoolExecutor(2) as pool:
        generating = pool.submit(llm.generate, PROMPTS[0], ENDLESS)
        assert is_in_step.wait(60)
        closing_it = pool.submit(llm.close)
        may_go_on.set()
        closing_it.result()
        with pytest.raises(AetherMindError, match="closed before"):
            generating.result()
    assert all(done)


def test_a_dropped_llm_leaves_no_reference_cycle(open_demo: Callable[..., LLM]) -> None:
    """With everything used that makes objects which refer to each other."""
    llm = open_demo()
    for way in ("generate", "several", "chosen", "scored", "stream", "embed", "left"):
        WAYS[way](llm)
    with llm.hooks.on("*", lambda *_: None):
        llm.generate("hi", GREEDY)

    async def scenario(inner: Engine) -> None:
        async with AsyncEngine(inner) as engine:
            await last(engine, PROMPTS[0], GREEDY)

    asyncio.run(scenario(llm.engine))
    engine = weakref.ref(llm.engine)
    runner = weakref.ref(llm.engine.runner)
    constants = weakref.ref(llm.engine.runner.constants)
    memory = weakref.ref(llm.engine.runner.kv_memory)
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [one() for one in (engine, runner, constants, memory)] == [None] * 4
    finally:
        gc.enable()
