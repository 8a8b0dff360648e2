"""An engine in a process of its own: the answers of the one in this process, and what happens when it is killed."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.end_to_end.models import poisoned_demo
from tests.processes import await_end

from aethermind import LLM, RequestOptions, RequestOutput, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import EngineProcess, RestartPolicy
from aethermind.errors import (
    AetherMindError,
    ComputationError,
    ContextLengthError,
    EngineDeadError,
    InvalidArgumentError,
)

CONFIG = EngineConfig(device="cpu", dtype="float32", max_model_len=256)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2, prompt_logprobs=1)
GREEDY_16 = SamplingParams(temperature=0.0, max_tokens=16)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
PATIENCE_S = 300
QUICK = RestartPolicy(max_restarts=1, first_delay_s=0.01)

Scenario = Callable[[EngineProcess], Awaitable[None]]


@pytest.fixture(scope="module")
def run(runtime: Runtime) -> Iterator[Callable[[Scenario], None]]:
    """`run(scenario)` on one engine process, which serves all of them; nothing is left open after one."""
    loop, engine = asyncio.new_event_loop(), EngineProcess("demo", CONFIG, runtime=runtime)
    thread = Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Awaitable[Any]) -> Any:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)  # type: ignore[arg-type]
        return done.result(PATIENCE_S)

    async def whole(scenario: Scenario) -> None:
        await scenario(engine)
        await engine.drain()
        await engine.adjust()  # what was forgotten was taken before this
        assert (engine.stats.num_running, engine.stats.kv_cache_usage) == (0, 0)

    wait_for(engine.__aenter__())
    yield lambda scenario: wait_for(whole(scenario))
    wait_for(engine.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def llm(runtime: Runtime) -> LLM:
    return LLM("demo", device="cpu", dtype="float32", max_model_len=256, runtime=runtime)


async def answer(engine: EngineProcess, prompt: Any, params: SamplingParams = GREEDY, **options: Any) -> RequestOutput:
    states = [output async for output in engine.generate(prompt, params, **options)]
    assert states[-1].finished
    return states[-1]


def open_files() -> dict[str, str]:
    """The open files of this process, by descriptor, after garbage of other tests was collected."""
    gc.collect()
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


async def exhaust(outputs: AsyncIterator[RequestOutput]) -> None:
    async for _ in outputs:
        pass


def test_many_tasks_get_the_answers_of_the_offline_api(run: Any, llm: LLM) -> None:
    prompts = [f"Once upon a time there was a {animal}" for animal in ("fox", "bear", "frog", "hen", "mouse", "goat")]
    expected = llm.generate(prompts, GREEDY)

    async def scenario(engine: EngineProcess) -> None:
        given = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
        for one, other in zip(given, expected, strict=True):
            assert one.outputs == other.outputs
            assert (one.prompt, one.prompt_token_ids, one.prompt_logprobs) == (
                other.prompt,
                other.prompt_token_ids,
                other.prompt_logprobs,
            )

    run(scenario)


def test_each_output_of_parallel_samples_extends_the_one_before(run: Any, llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=16, stop="\n")
    (expected,) = llm.generate("The old fox", params)

    async def scenario(engine: EngineProcess) -> None:
        texts: dict[int, str] = {}
        async for output in engine.generate("The old fox", params):
            for one in output.outputs:
                assert one.text.startswith(texts.get(one.index, ""))
                texts[one.index] = one.text
        assert output.outputs == expected.outputs

    run(scenario)


def test_embeddings_cross_in_prompts_and_in_results(run: Any, llm: LLM) -> None:
    prompt = {"prompt_embeds": [[0.01 * (i - j) for j in range(256)] for i in range(3)]}
    (expected,) = llm.generate(prompt, GREEDY_16)

    async def scenario(engine: EngineProcess) -> None:
        assert (await answer(engine, prompt, GREEDY_16)).outputs == expected.outputs
        vector = await engine.embed(await engine.read("The old fox"), "mean", is_normalized=True)
        assert vector.tobytes() == llm.embed("The old fox", pooling="mean")[0].tobytes()

    run(scenario)


def test_requests_end_when_their_reader_leaves_and_when_aborted(run: Any) -> None:
    async def scenario(engine: EngineProcess) -> None:
        left = engine.generate("Once", ENDLESS)
        await anext(left)
        await left.aclose()
        cancelled = asyncio.create_task(answer(engine, "Once", ENDLESS))
        await asyncio.sleep(0)
        cancelled.cancel()
        aborted = engine.generate("Once", ENDLESS, request_id="mine")
        first = await anext(aborted)
        assert engine.abort("mine")
        last = [output async for output in aborted][-1]
        assert last.outputs[0].finish_reason in ("abort", "length")
        assert last.outputs[0].text.startswith(first.outputs[0].text)
        assert not engine.abort("mine")
        assert (await answer(engine, "Once", request_id="mine")).outputs[0].finish_reason != "abort"

    run(scenario)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ("word " * 5000, {}, ContextLengthError, "context holds 256"),
        ("", {}, InvalidArgumentError, "empty"),
        ({"prompt_token_ids": [10**30]}, {}, InvalidArgumentError, "out of range"),
        ("Once", {"logits_processors": ["none"]}, AetherMindError, "none"),
        ("Once", {"extra_args": {"what": {1, 2}}}, InvalidArgumentError, "cannot be sent"),
        ("Once", {"logit_bias": {99999999: 1}}, InvalidArgumentError, "vocabulary"),
    ],
)
def test_a_refused_request_raises_the_class_of_its_error(
    run: Any, prompt: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async def scenario(engine: EngineProcess) -> None:
        with pytest.raises(error, match=words):
            await answer(engine, prompt, SamplingParams(**options))
        with pytest.raises(InvalidArgumentError, match="opened for"):
            await engine.adjust(max_num_batched_tokens=10**6)

    run(scenario)


def test_a_slow_reader_gets_the_newest_output(run: Any) -> None:
    async def scenario(engine: EngineProcess) -> None:
        outputs = engine.generate("Once", ENDLESS)
        states = [await anext(outputs)]
        await answer(engine, "Once", ENDLESS)  # which ends later, as it began later
        states += [state async for state in outputs]
        assert states[-1].finished
        assert len(states) <= 2

    run(scenario)


def test_a_killed_engine_fails_open_requests_and_is_restarted_until_the_limit(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with EngineProcess("demo", CONFIG, runtime=runtime, policy=QUICK) as engine:
            pids, prompt = [engine.pid], await engine.read("Once")
            await _killed(engine)
            assert "started again in 0.01 s" in str(engine.failure)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await answer(engine, prompt)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await engine.embed(prompt, "last", is_normalized=True)
            assert engine.stats.num_running == 0
            while not engine.is_alive:
                await asyncio.sleep(0.02)
            pids.append(engine.pid)
            await _killed(engine)  # before it gave a whole answer
            assert "2 times in a row and is not started again" in str(engine.failure)
            assert engine.pid is None
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # nor are they zombies
        assert len(set(pids)) == 2

    before = open_files()
    with caplog.at_level(logging.WARNING, logger="aethermind"):
        asyncio.run(scenario())
    assert open_files().items() <= before.items()
    assert any("not started again" in record.message for record in caplog.records)


def test_a_healthy_engine_is_restarted_however_often_it_is_killed(runtime: Runtime) -> None:
    async def scenario() -> None:
        async with EngineProcess("demo", CONFIG, runtime=runtime, policy=QUICK) as engine:
            await engine.adjust(max_num_seqs=2, max_prefill_chunk=3)
            for _ in range(2):
                while not engine.is_alive:
                    await asyncio.sleep(0.02)
                assert (await answer(engine, "Once")).finished
                limits = await engine.adjust()
                assert (limits["max_num_seqs"], limits["max_prefill_chunk"]) == (2, 3), "changed limits are kept"
                begun = engine.generate("Once", ENDLESS)
                await anext(begun)
                await _killed(engine)
                assert "started again in 0.01 s" in str(engine.failure)
                with suppress(EngineDeadError):  # unless it was finished before
                    await exhaust(begun)

    asyncio.run(scenario())


async def _killed(engine: EngineProcess) -> None:
    """Kill the process under three open requests, which ends them. It stops before: it must not finish one sooner."""
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    num_given = len(engine._names) + 3
    opened = [asyncio.create_task(exhaust(engine.generate("Once", ENDLESS))) for _ in range(3)]
    while len(engine._names) < num_given and not any(one.done() for one in opened):
        await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    for one in opened:
        with pytest.raises(EngineDeadError, match=r"killed by SIGKILL\..*where memory runs out"):
            await one


def test_it_starts_with_a_thousand_open_connections(runtime: Runtime) -> None:
    async def scenario() -> None:
        async with EngineProcess("demo", CONFIG, runtime=runtime) as engine:
            assert (await answer(engine, "Once")).finished

    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard == resource.RLIM_INFINITY else max(hard, 2048)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), most))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        while stack.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        asyncio.run(scenario())


def test_a_process_that_hangs_is_killed(runtime: Runtime) -> None:
    async def scenario() -> None:
        policy = RestartPolicy(max_restarts=0, stall_timeout_s=0.5)
        async with EngineProcess("demo", CONFIG, runtime=runtime, policy=policy) as engine:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSTOP)
            stalled = r"The engine process said nothing for 0\.5 s in a step, and was killed\. It failed once"
            with pytest.raises(EngineDeadError, match=stalled):
                await exhaust(engine.generate("Once", ENDLESS))

    asyncio.run(scenario())


def test_an_error_of_a_request_arrives_with_its_class(runtime: Runtime, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EngineProcess(str(poisoned_demo(tmp_path)), CONFIG, runtime=runtime) as engine:
            with pytest.raises(ComputationError, match="cannot go on: the model's logits are not finite"):
                await answer(engine, "Once")

    asyncio.run(scenario())


def test_it_ignores_signals_to_the_process_group_and_forwards_log_records(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with EngineProcess("demo", CONFIG, runtime=runtime) as engine:
            assert engine.pid is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine.pid, number)
            assert (await answer(engine, "Once")).finished
            with pytest.raises(Exception, match="embed"):
                await engine._call_utility("embed", nonsense=1)

    asyncio.run(scenario())
    (record,) = [record for record in caplog.records if record.name == "aethermind.engine.process.worker"]
    assert record.levelno == logging.ERROR
    assert "Traceback" in (record.exc_text or "")


@pytest.mark.parametrize(
    ("model", "options"),
    [("./nowhere", {}), ("demo", {"dtype": "float16", "kv_cache_dtype": "bfloat16"}), ("demo", {"device": "cuda:99"})],
)
def test_load_errors_are_those_of_an_engine_in_this_process(
    runtime: Runtime, model: str, options: dict[str, Any]
) -> None:
    with pytest.raises(AetherMindError) as expected:
        LLM(model, runtime=runtime, **options)

    async def scenario() -> None:
        async with EngineProcess(model, EngineConfig(**options), runtime=runtime):
            pass

    with pytest.raises(type(expected.value)) as given:
        asyncio.run(scenario())
    assert str(given.value) == str(expected.value)


def test_what_closing_logs_arrives(runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        config = replace(CONFIG, session_dir=str(tmp_path / "sessions"))
        async with EngineProcess("demo", config, runtime=runtime) as engine:
            options = RequestOptions(session="tale")
            await exhaust(engine.generate("Once", SamplingParams(max_tokens=4), options=options))
            shutil.rmtree(tmp_path / "sessions")

    with caplog.at_level(logging.WARNING, logger="aethermind"):
        asyncio.run(scenario())
    assert "session tale is not saved: The session cannot be saved: No such file or directory." in caplog.messages


def test_the_process_ends_with_its_parent() -> None:
    program = (
        "import asyncio, os\n"
        "from aethermind.engine.config import EngineConfig\n"
        "from aethermind.engine.process import EngineProcess\n"
        "async def main():\n"
        "    async with EngineProcess('demo', EngineConfig(device='cpu', max_model_len=256)) as engine:\n"
        "        print(engine.pid, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == -signal.SIGKILL
    pid = int(result.stdout)
    await_end(pid)
