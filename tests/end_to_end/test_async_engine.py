"""Many tasks share one engine: answers equal those of the offline API, through aborts, timeouts and failures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aethermind import LLM, RequestOutput, SamplingParams, StructuredOutputs
from aethermind.engine.requests.output_delta import OutputSource
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.errors import ContextLengthError, EngineDeadError, InvalidArgumentError, RequestTimeoutError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


@asynccontextmanager
async def open_engine(llm: LLM) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(llm.engine) as engine:
        yield engine
        await engine.drain()
        await engine.call(lambda _: None)  # the last aborts were taken before this


def hold(llm: LLM, patch: pytest.MonkeyPatch) -> None:
    """Steps compute only while a request waits for its first token, so that no answer finishes too early."""
    engine, advance = llm.engine, llm.engine.advance

    def compute_or_wait() -> Sequence[OutputSource]:
        if engine.waiting:
            return advance()
        time.sleep(0.001)  # so that other threads can take the engine's lock
        return []

    patch.setattr(engine, "advance", compute_or_wait)


def run(llm: LLM, scenario: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with open_engine(llm) as engine:
            await scenario(engine)

    asyncio.run(inside())


async def answer(engine: AsyncEngine, prompt: str, params: SamplingParams = GREEDY, **options: object) -> RequestOutput:
    states = [output async for output in engine.generate(prompt, params, **options)]  # type: ignore[arg-type]
    assert states[-1].finished
    return states[-1]


async def exhaust(outputs: AsyncIterator[RequestOutput]) -> None:
    async for _ in outputs:
        pass


def test_many_tasks_get_the_answers_of_the_offline_api(demo: LLM) -> None:
    prompts = [f"Once upon a time there was a {animal}" for animal in ("fox", "bear", "frog", "hen", "mouse", "goat")]
    expected = [output.outputs[0].token_ids for output in demo.generate(prompts, GREEDY)]

    async def scenario(engine: AsyncEngine) -> None:
        outputs = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
        assert [output.outputs[0].token_ids for output in outputs] == expected

    run(demo, scenario)


def test_each_output_extends_the_one_before(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        text = ""
        async for output in engine.generate("The old fox", GREEDY):
            assert output.outputs[0].text.startswith(text)
            text = output.outputs[0].text
        assert text

    run(demo, scenario)


def test_leaving_the_loop_ends_the_request(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        outputs = engine.generate("Once", ENDLESS)
        await anext(outputs)
        assert engine.num_open == 1
        await outputs.aclose()
        assert engine.num_open == 0

    run(demo, scenario)


def test_cancelling_a_task_ends_only_its_request(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        alone = await answer(engine, "The hen")
        lost = asyncio.create_task(answer(engine, "Once", ENDLESS))
        kept = asyncio.create_task(answer(engine, "The hen"))
        await asyncio.sleep(0)
        lost.cancel()
        assert (await kept).outputs[0].token_ids == alone.outputs[0].token_ids
        with pytest.raises(asyncio.CancelledError):
            await lost

    run(demo, scenario)


def test_other_requests_run_while_a_grammar_is_compiled(
    open_demo: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, may_compile = open_demo(), threading.Event()
    grammars = llm.engine._constraints_builder._grammars
    compile = grammars._compile

    def compile_late(wanted: StructuredOutputs) -> object:
        assert may_compile.wait(60)
        return compile(wanted)

    monkeypatch.setattr(grammars, "_compile", compile_late)

    async def scenario(engine: AsyncEngine) -> None:
        chosen = SamplingParams(max_tokens=24, structured_outputs=StructuredOutputs(choice=["yes", "yes indeed"]))
        waits = asyncio.create_task(answer(engine, "Once", chosen))
        broken = SamplingParams(structured_outputs=StructuredOutputs(regex="("))
        refused = asyncio.create_task(answer(engine, "Once", broken))
        await answer(engine, "Once upon a time")
        assert not waits.done()
        may_compile.set()
        assert (await waits).outputs[0].text.startswith("yes")
        with pytest.raises(InvalidArgumentError, match="cannot be served"):
            await refused

    run(llm, scenario)


def test_an_aborted_request_finishes_with_its_output_so_far(demo: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(demo, monkeypatch)

    async def scenario(engine: AsyncEngine) -> None:
        outputs = engine.generate("Once", ENDLESS, request_id="mine")
        first = await anext(outputs)
        assert engine.abort("mine")
        last = [output async for output in outputs][-1]
        assert last.finished
        assert last.outputs[0].finish_reason == "abort"
        assert last.outputs[0].text.startswith(first.outputs[0].text)
        assert not engine.abort("mine")

    run(demo, scenario)


def test_a_request_times_out(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(RequestTimeoutError, match="not finished after 0 seconds"):
            await answer(engine, "Once", ENDLESS, timeout_s=0.0)

    run(demo, scenario)


def test_a_bad_request_fails_and_others_do_not(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        good = asyncio.create_task(answer(engine, "The goat"))
        with pytest.raises(ContextLengthError, match="context holds 128"):
            await answer(engine, "word " * 5000)
        with pytest.raises(InvalidArgumentError, match="empty"):
            await answer(engine, "")
        outputs = engine.generate("Once", ENDLESS, request_id="twice")
        await anext(outputs)
        with pytest.raises(InvalidArgumentError, match="in use"):
            await answer(engine, "Once", request_id="twice")
        await outputs.aclose()
        await good

    run(demo, scenario)


def test_a_failing_step_fails_open_and_later_requests(
    open_demo: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_demo()
    hold(llm, monkeypatch)

    async def scenario() -> None:
        async with AsyncEngine(llm.engine) as engine:
            outputs = [engine.generate("Once", ENDLESS) for _ in range(3)]
            for one in outputs:
                await anext(one)
            monkeypatch.setattr(llm.engine, "advance", _broken)
            for one in outputs:
                with pytest.raises(EngineDeadError, match="a cable was pulled"):
                    await exhaust(one)
            assert not engine.is_alive
            with pytest.raises(EngineDeadError, match="a cable was pulled"):
                await answer(engine, "Once")

    asyncio.run(scenario())


def test_closing_ends_open_requests(open_demo: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    llm = open_demo()
    hold(llm, monkeypatch)

    async def scenario() -> None:
        async with AsyncEngine(llm.engine) as engine:
            outputs = engine.generate("Once", ENDLESS)
            await anext(outputs)
        with pytest.raises(EngineDeadError, match="closed"):
            await exhaust(outputs)
        with pytest.raises(EngineDeadError):
            await answer(engine, "Once")

    asyncio.run(scenario())


def test_texts_are_embedded_while_requests_run(demo: LLM) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        answered = asyncio.create_task(answer(engine, "The goat"))
        vector = await engine.embed(await engine.read("The old fox"), "mean", is_normalized=True)
        assert vector.tobytes() == demo.embed("The old fox", pooling="mean")[0].tobytes()
        with pytest.raises(InvalidArgumentError, match="pooling"):
            await engine.embed(await engine.read("The old fox"), "max", is_normalized=True)
        await answered

    run(demo, scenario)


def test_limits_are_adjusted_while_requests_run(open_demo: Callable[..., LLM]) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        outputs = engine.generate("Once", ENDLESS)
        await anext(outputs)
        await engine.adjust(max_num_seqs=1, max_prefill_chunk=8)
        budget = await engine.call(lambda inner: inner.budget)
        assert (budget.max_num_seqs, budget.max_prefill_chunk) == (1, 8)
        with pytest.raises(InvalidArgumentError, match="opened for"):
            await engine.adjust(max_num_batched_tokens=10**6)
        await outputs.aclose()

    run(open_demo(), scenario)


def test_stats_count_requests_and_blocks(demo: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(demo, monkeypatch)

    async def scenario(engine: AsyncEngine) -> None:
        outputs = engine.generate("Once upon a time", ENDLESS)
        await anext(outputs)
        stats = await engine.call(lambda _: engine.stats)
        assert (stats.num_running, stats.num_waiting) == (1, 0)
        assert 0 < stats.kv_cache_usage < 1
        await outputs.aclose()
        stats = await engine.call(lambda _: engine.stats)
        assert (stats.num_running, stats.kv_cache_usage) == (0, 0)

    run(demo, scenario)


def test_several_models_by_name_in_one_process(open_demo: Callable[..., LLM]) -> None:
    llms = {"long": open_demo(), "short": open_demo(max_model_len=32), "small": open_demo(quantization="int8")}
    expected = {name: llm.generate("The old fox", GREEDY)[0].outputs[0].token_ids for name, llm in llms.items()}
    assert expected["long"][:8] == expected["short"][:8]

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            engines = {name: await stack.enter_async_context(AsyncEngine(llm.engine)) for name, llm in llms.items()}
            for _ in range(2):  # the second time the prompts are in each model's own prefix cache
                outputs = await asyncio.gather(*(answer(engine, "The old fox") for engine in engines.values()))
                found = {name: one.outputs[0].token_ids for name, one in zip(engines, outputs, strict=True)}
                assert found == expected

    asyncio.run(scenario())


def _broken() -> Sequence[OutputSource]:
    raise RuntimeError("a cable was pulled")
