"""Sessions of models with recurrent layers: parked with their states, swapped out, dropped, protected and saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.end_to_end.recurrent_model import OpenRecurrent, recurrent_models

from aethermind import SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import InvalidArgumentError

KINDS = ["recurrent", "hybrid"]
TURN = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
OPTIONS = {"block_size": 4, "max_num_batched_tokens": 16}
PROMPTS = {f"s{index}": [50 * index + token + 5 for token in range(20)] for index in range(8)}


@pytest.fixture
def open_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenRecurrent:
    return recurrent_models(monkeypatch, tmp_path)


def take_turn(engine: Engine, session: str, prompt: list[int]) -> tuple[list[int], int]:
    """The conversation after a turn, and how many of its tokens were cached."""
    engine.add_request("turn", prompt, TURN, options=RequestOptions(session=session))
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    last = outputs[-1]
    return [*prompt, *last.outputs[0].token_ids], last.num_cached_tokens


def two_turns(open_model: OpenRecurrent, kind: str) -> dict[str, tuple[list[int], list[int]]]:
    """Each conversation after one turn and after two, computed from its beginning."""
    plain = open_model(kind, enable_prefix_caching=False, **OPTIONS)
    turns = {}
    for name, prompt in PROMPTS.items():
        after_one, _ = take_turn(plain, "", prompt)
        turns[name] = after_one, take_turn(plain, "", [*after_one, 7, 8])[0]
    return turns


def states(engine: Engine) -> Counter[str]:
    return Counter(info.state for info in engine.manage_session("list"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swap_space", [0.0, 0.01])
def test_idle_sessions_leave_state_slots_to_others(open_model: OpenRecurrent, kind: str, swap_space: float) -> None:
    """Eight sessions and a slot for each of three: the others are swapped out, or dropped."""
    expected = two_turns(open_model, kind)
    engine = open_model(kind, max_num_seqs=2, swap_space=swap_space, **OPTIONS)
    for name, prompt in PROMPTS.items():
        assert take_turn(engine, name, prompt)[0] == expected[name][0]
    if swap_space:
        assert states(engine) == {"swapped": 2, "standby": 3, "warm": 3}
        assert engine.cache.num_free_slots == 0
    reused = []
    for name in reversed(PROMPTS):
        conversation, num_cached = take_turn(engine, name, [*expected[name][0], 7, 8])
        assert conversation == expected[name][1]
        reused.append(num_cached)
    assert reused[0] == 24
    assert not swap_space or reused[-2:] == [24, 24], "those that were swapped out first"
    for name in PROMPTS:
        engine.manage_session("delete", name)
    assert engine.cache.num_sequences == 0
    assert engine.cache.num_free_slots == 3


@pytest.mark.parametrize("kind", KINDS)
def test_protected_sessions_keep_their_slots(open_model: OpenRecurrent, kind: str) -> None:
    expected = two_turns(open_model, kind)
    engine = open_model(kind, max_num_seqs=2, swap_space=0.01, **OPTIONS)
    take_turn(engine, "s0", PROMPTS["s0"])
    assert engine.manage_session("protect", "s0")[0].is_protected
    for name in list(PROMPTS)[1:]:
        take_turn(engine, name, PROMPTS[name])
    with pytest.raises(InvalidArgumentError, match="or max_num_seqs for recurrent layers"):
        engine.manage_session("protect", "s1")
    (info,) = (each for each in engine.manage_session("list") if each.name == "s0")
    assert info.state == "standby"
    assert take_turn(engine, "s0", [*expected["s0"][0], 7, 8]) == (expected["s0"][1], 24)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_sessions_survive_a_restart(open_model: OpenRecurrent, kind: str, tmp_path: Path) -> None:
    expected = two_turns(open_model, kind)
    options = {**OPTIONS, "max_num_seqs": 16, "session_dir": str(tmp_path / "sessions")}
    engine = open_model(kind, **options)
    for name, prompt in PROMPTS.items():
        take_turn(engine, name, prompt)
    assert engine.manage_session("save", "s0")[0].is_saved
    engine.close()
    engine = open_model(kind, **options)
    assert states(engine) == {"saved": len(PROMPTS)}
    for name in PROMPTS:
        assert take_turn(engine, name, [*expected[name][0], 7, 8]) == (expected[name][1], 24)
