"""Sessions of an engine with swap space: parked between turns, swapped out under pressure, saved, and answers equal."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.scale import scaled

from aethermind import LLM, KVCache, RequestOptions, Runtime, SamplingParams, SessionInfo
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.errors import CacheContentError, InvalidArgumentError

OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 64, "block_size": 4}
PRESSED: dict[str, Any] = {**OPTIONS, "num_kv_blocks": 40, "swap_space": 0.01}
TURN = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(runtime: Runtime) -> LLM:
    """An engine under no pressure."""
    return LLM("demo", runtime=runtime, **OPTIONS)


def take_turn(llm: LLM, session: str, prompt: list[int]) -> tuple[list[int], int]:
    """The conversation after a turn, and how many of its tokens were cached."""
    (output,) = llm.generate({"prompt_token_ids": prompt}, TURN, options=RequestOptions(session=session))
    return [*prompt, *output.outputs[0].token_ids], output.num_cached_tokens


def start(llm: LLM, num_sessions: int) -> dict[str, list[int]]:
    """The conversations after a first turn of each."""
    prompts = {f"s{index}": [100 * index + token + 5 for token in range(20)] for index in range(num_sessions)}
    return {name: take_turn(llm, name, prompt)[0] for name, prompt in prompts.items()}


def states(llm: LLM) -> Counter[str]:
    return Counter(info.state for info in llm.list_sessions())


def described(llm: LLM, name: str) -> SessionInfo:
    return next(info for info in llm.list_sessions() if info.name == name)


def test_idle_sessions_are_swapped_out_the_oldest_first_and_return(runtime: Runtime, plain: LLM) -> None:
    with LLM("demo", runtime=runtime, **PRESSED) as llm:
        conversations = start(llm, 12)
        assert [info.state for info in llm.list_sessions()] == ["swapped"] * 6 + ["standby"] * 6
        assert llm.cache.usage <= 0.9
        for name, conversation in conversations.items():
            prompt = [*conversation, 7, 8]
            after, num_cached = take_turn(llm, name, prompt)
            assert num_cached == len(conversation) - 1, "nothing but the newest token is computed again"
            assert after == take_turn(plain, "", prompt)[0]
        stats = EngineStats.of(llm.engine)
        assert stats.swapped_in_bytes >= 6 * 6 * llm.cache.spec.bytes_per_block
        for name in conversations:
            llm.delete_session(name)
        assert (llm.cache.usage, llm.cache.num_swapped_blocks, llm.cache.num_sequences) == (0.0, 0, 0)


def test_protected_sessions_remain_in_device_memory(runtime: Runtime) -> None:
    with LLM("demo", runtime=runtime, session_ttl=1e-9, **PRESSED) as llm:
        take_turn(llm, "kept", list(range(5, 25)))
        assert not llm.list_sessions(), "sessions expire"
    with LLM("demo", runtime=runtime, **PRESSED) as llm:
        conversation, _ = take_turn(llm, "kept", list(range(5, 25)))
        assert llm.protect_session("kept").is_protected
        start(llm, 12)
        assert described(llm, "kept").state == "standby"
        assert take_turn(llm, "kept", [*conversation, 7])[1] == len(conversation) - 1
        assert described(llm, "kept").is_protected, "the next turn is protected, too"
        for name in ("s0", "s1"):
            llm.protect_session(name)
        with pytest.raises(InvalidArgumentError, match="Protected sessions may hold half of the KV cache"):
            llm.protect_session("s2")
        assert not llm.protect_session("kept", is_protected=False).is_protected
        start(llm, 12)
        assert described(llm, "kept").state == "swapped"


def test_without_swap_space_sessions_are_warm_and_requests_go_first(runtime: Runtime, plain: LLM) -> None:
    with LLM("demo", runtime=runtime, **{**PRESSED, "swap_space": 0.0}) as llm:
        conversations = start(llm, 3)
        assert states(llm) == {"warm": 3}
        llm.protect_session("s0")
        prompts = [[400 + index, *range(20, 60)] for index in range(6)]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], TURN)
        expected = [take_turn(plain, "", prompt)[0] for prompt in prompts]
        assert [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs] == expected
        assert take_turn(llm, "s0", [*conversations["s0"], 7])[1] == len(conversations["s0"]) - 1


def test_saved_sessions_survive_a_restart(runtime: Runtime, plain: LLM, tmp_path: Path) -> None:
    options = {**PRESSED, "session_dir": str(tmp_path)}
    with LLM("demo", runtime=runtime, **options) as llm:
        conversations = start(llm, 8)
        assert llm.save_session("s0").is_saved
        llm.delete_session("s1")
    with LLM("demo", runtime=runtime, **options) as llm:
        assert {info.name: info.state for info in llm.list_sessions()} == {
            name: "saved" for name in conversations if name != "s1"
        }
        assert described(llm, "s2").num_tokens == 24
        assert llm.load_session("s2").state == "standby"
        for name, expected in (("s2", 24), ("s3", 24), ("s1", 0)):
            prompt = [*conversations[name], 7, 8]
            after, num_cached = take_turn(llm, name, prompt)
            assert (num_cached, after) == (expected, take_turn(plain, "", prompt)[0])
        llm.delete_session("s4")
        with pytest.raises(InvalidArgumentError, match="no session 's4' to load; list_sessions shows all"):
            llm.load_session("s4")
        damaged = next(tmp_path.glob("*/*.session"))
        damaged.write_bytes(damaged.read_bytes()[:-1])
        for name, conversation in conversations.items():  # one is computed again
            assert take_turn(llm, name, [*conversation, 9])[0] == take_turn(plain, "", [*conversation, 9])[0]


def test_a_session_in_memory_outlives_a_damaged_file_and_is_protected_after_a_load(
    runtime: Runtime, tmp_path: Path
) -> None:
    with LLM("demo", runtime=runtime, session_dir=str(tmp_path), **PRESSED) as llm:
        conversation, _ = take_turn(llm, "kept", list(range(5, 25)))
        llm.protect_session("kept")
        llm.save_session("kept")
        assert llm.load_session("kept").is_protected
        (path,) = tmp_path.glob("*/*.session")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CacheContentError):
            llm.load_session("kept")
        assert (described(llm, "kept").state, described(llm, "kept").is_protected) == ("standby", True)
        assert take_turn(llm, "kept", [*conversation, 7])[1] == len(conversation) - 1
        path.write_bytes(b"")
        assert llm.delete_session("kept").is_saved
        assert (list(tmp_path.glob("*/*")), llm.list_sessions(), llm.cache.num_sequences) == ([], [], 0)


def test_a_session_whose_file_cannot_be_deleted_is_kept(runtime: Runtime, tmp_path: Path) -> None:
    with LLM("demo", runtime=runtime, session_dir=str(tmp_path), **PRESSED) as llm:
        start(llm, 1)
        llm.save_session("s0")
        (path,) = tmp_path.glob("*/*.session")
        path.unlink()
        path.mkdir()
        with pytest.raises(InvalidArgumentError, match="cannot be deleted"):
            llm.delete_session("s0")
        assert described(llm, "s0").state == "standby"


def test_models_save_their_sessions_apart(runtime: Runtime, plain: LLM, tmp_path: Path) -> None:
    copy = shutil.copytree(plain.engine.compiled.source.path, tmp_path / "copy")
    for model, num_saved in (("demo", 0), (str(copy), 0), ("demo", 1)):
        with LLM(model, runtime=runtime, session_dir=str(tmp_path / "sessions"), **PRESSED) as llm:
            assert len(llm.list_sessions()) == num_saved
            start(llm, 1)
    assert len(list((tmp_path / "sessions").glob("*/*.session"))) == 2


def test_saving_needs_a_directory(runtime: Runtime, plain: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Sessions are not saved without a directory; set session_dir\."):
        plain.save_session("s0")
    with pytest.raises(InvalidArgumentError, match="session_dir needs enable_prefix_caching"):
        LLM("demo", runtime=runtime, session_dir="here", enable_prefix_caching=False)
    with pytest.raises(InvalidArgumentError, match="session_dir should be the path of a directory, got ''"):
        LLM("demo", runtime=runtime, session_dir="")


def test_the_cache_says_what_a_prompt_reuses(plain: LLM) -> None:
    prompt = [900 - token for token in range(20)]
    assert plain.num_cached_tokens({"prompt_token_ids": prompt}) == 0
    take_turn(plain, "", prompt)
    assert plain.num_cached_tokens({"prompt_token_ids": [*prompt, 1]}) == 20
    assert isinstance(plain.cache, KVCache)
    assert sum(plain.cache.count_states().values()) == plain.cache.pool.num_blocks


@pytest.mark.parametrize("layout", ["cell", "static"])
def test_layouts_differ_in_their_blocks_only(runtime: Runtime, plain: LLM, layout: str) -> None:
    with LLM("demo", runtime=runtime, kv_cache_layout=layout, **OPTIONS) as llm:
        assert llm.info.block_size == {"cell": 1, "static": 64}[layout]
        for index in range(3):
            prompt = [50 * index + token for token in range(5, 30)]
            assert take_turn(llm, "", prompt)[0] == take_turn(plain, "", prompt)[0]


@pytest.mark.parametrize("seed", range(scaled(200)))
@pytest.mark.parametrize("swap_space", [0.0, 2e-4, 0.01])
def test_random_operations_change_no_answer(runtime: Runtime, tmp_path: Path, seed: int, swap_space: float) -> None:
    """Sessions park, shift, swap, share, and are saved, loaded, protected and deleted while limits change."""
    options = {**OPTIONS, "max_model_len": 48, "context_shift": True}
    pressed = {**options, "num_kv_blocks": 30, "swap_space": swap_space, "session_dir": str(tmp_path)}
    chance, conversations = random.Random(seed), {f"s{index}": [5, 6, 7, 8, 20 + index] for index in range(8)}
    done: Counter[str] = Counter()
    with LLM("demo", runtime=runtime, **options) as alone, LLM("demo", runtime=runtime, **pressed) as llm:
        engine, open_turns, num_turns = llm.engine, dict[str, list[int]](), 0
        engine.add_listener(Listener(alone, conversations, open_turns, done))
        while num_turns < 100 or open_turns:
            name, action = chance.choice(list(conversations)), chance.choice(["turn"] * 6 + ["step"] * 15 + ACTIONS)
            if action == "turn" and name not in open_turns and num_turns < 100:
                num_turns += 1
                prompt = [*conversations[name], *(chance.randrange(5, 900) for _ in range(chance.randrange(1, 12)))]
                open_turns[name] = prompt
                params = SamplingParams(temperature=0.0, max_tokens=chance.randrange(1, 20), ignore_eos=True)
                engine.add_request(name, prompt, params, options=RequestOptions(session=name))
            elif action == "abort" and name in open_turns:
                engine.abort(name)
            elif action == "adjust":
                engine.adjust(max_num_seqs=chance.randrange(1, 6), max_num_batched_tokens=chance.randrange(6, 100))
            elif action in ("save", "load", "delete", "protect", "unprotect"):
                try:
                    done[action] += len(engine.manage_session(action, name))
                except InvalidArgumentError:
                    done["refused"] += 1
            elif engine.has_unfinished:
                engine.step()
        assert min(done[what] for what in ("answered", "shifted", "save", "delete")) > 0
        assert (EngineStats.of(engine).swapped_in_bytes > 0) == (swap_space > 0)
        for name in conversations:
            engine.manage_session("delete", name)
        assert (llm.cache.usage, llm.cache.num_swapped_blocks, llm.cache.num_sequences) == (0.0, 0, 0)


ACTIONS = ["abort", "adjust", "save", "load", "delete", "protect", "unprotect"]


class Listener:
    """Compares each finished turn with the answer of the engine that computes it alone."""

    def __init__(
        self, alone: LLM, conversations: dict[str, list[int]], open_turns: dict[str, list[int]], done: Counter[str]
    ) -> None:
        self.alone, self.conversations, self.open_turns, self.done = alone, conversations, open_turns, done

    def put(self, sources: Any) -> None:
        for output in (source.output() for source in sources):
            if not output.finished:
                continue
            prompt, answer = self.open_turns.pop(output.request_id), output.outputs[0]
            if answer.finish_reason == "abort":
                assert output.error is None
                continue
            params = SamplingParams(temperature=0.0, max_tokens=len(answer.token_ids), ignore_eos=True)
            (expected,) = self.alone.generate({"prompt_token_ids": prompt}, params)
            assert answer.token_ids == expected.outputs[0].token_ids
            self.done["answered"] += 1
            self.done["shifted"] += len(prompt) + len(answer.token_ids) > 48
            self.conversations[output.request_id] = [*prompt, *answer.token_ids][-70:]

    def closed(self) -> None:
        """The engine is closed by the test."""
