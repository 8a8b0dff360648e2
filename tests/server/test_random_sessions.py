"""Random conversations over HTTP in a cache that is far too small: every answer equals that of a lone request.

Sessions park, swap, shift, share prefixes and are saved, loaded, protected and deleted, limits change, clients
disconnect and the server restarts, between steps of the engine. 6 runs of 40 to 80 operations; `make nightly` makes 600
of twice as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scale import is_extended, scaled
from tests.server.conftest import serving
from tests.server.stepped_server import CHAT, Reply, SteppedServer, Turn

from aethermind import LLM, Runtime
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts

CONTEXT = 96
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "deterministic": True,
    "block_size": 4,
    "max_model_len": CONTEXT,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 64,
}
SESSIONS = [f"s{index}" for index in range(6)]
WORDS = ["fox", "sea", "moon", "Tell me more.", "Who are you?", "The old owl sat in the tree and looked at the stars."]
OPENINGS = [
    [{"role": "user", "content": words}, {"role": "assistant", "content": "The fox ran to the sea and sat down."}]
    for words in ("Tell me a story about a fox.", "What did the owl say to the moon?")
]
NUM_TURNS = 5
"""Turns that are open at once, at most."""


@cache
def runtime() -> Runtime:
    return Runtime.boot()


OPENED = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    with OPENED:
        yield
    reference.cache_clear()


@cache
def reference(context_shift: bool) -> httpx.Client:
    """A client of a server whose cache is large and keeps nothing between requests."""
    llm = LLM("demo", runtime=runtime(), context_shift=context_shift, enable_prefix_caching=False, **OPTIONS)
    address = OPENED.enter_context(serving(OPENED.enter_context(llm)))
    return OPENED.enter_context(httpx.Client(base_url=address, timeout=60))


def answer_alone(body: dict[str, Any], context_shift: bool) -> Reply:
    """The answer to a lone request, without a stream or a session."""
    asked = {name: value for name, value in body.items() if name not in ("session_id", "stream", "stream_options")}
    response = reference(context_shift).post(CHAT, json=asked)
    return Reply.of(response.status_code, response.json())


Operation = tuple[str, dict[str, Any]]

NAMES = st.sampled_from(SESSIONS)
OPERATIONS: dict[str, tuple[int, st.SearchStrategy[dict[str, Any]]]] = {
    "step": (12, st.fixed_dictionaries({"count": st.integers(1, 30)})),
    "turn": (
        10,
        st.fixed_dictionaries(
            {
                "name": NAMES,
                "num_dropped": st.sampled_from([0, 0, 0, 1]),
                "words": st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
                "max_tokens": st.integers(1, 40),
                "stream": st.booleans(),
                "n": st.sampled_from([1, 1, 1, 2, 3]),
                "temperature": st.sampled_from([0.0, 1.0]),
                "seed": st.integers(0, 3),
                "ignore_eos": st.booleans(),
            }
        ),
    ),
    "fork": (1, st.fixed_dictionaries({"name": NAMES, "other": NAMES})),
    "disconnect": (1, st.fixed_dictionaries({"name": NAMES})),
    "manage": (
        6,
        st.fixed_dictionaries(
            {"index": st.integers(0, 5), "actions": st.sampled_from(["save load", "protect", "delete", "unprotect"])}
        ),
    ),
    "change_limits": (
        2,
        st.fixed_dictionaries(
            {
                "max_num_seqs": st.integers(1, 6),
                "max_num_batched_tokens": st.integers(6, 64),
                "max_prefill_chunk": st.integers(1, 64),
            }
        ),
    ),
    "restart": (1, st.just({})),
}
"""Operations with their weights and arguments: methods of `Conversations`."""

OPERATION: st.SearchStrategy[Operation] = st.sampled_from(
    [name for name, (weight, _) in OPERATIONS.items() for _ in range(weight)]
).flatmap(lambda name: st.tuples(st.just(name), OPERATIONS[name][1]))


class Conversations:
    """A server, and the sessions of its clients: the messages of each, and the open turn of some."""

    def __init__(self, options: dict[str, Any], done: Counter[str]) -> None:
        self.options = {**OPTIONS, **options}
        self.done = done
        self.histories = {name: OPENINGS[index % 2] for index, name in enumerate(SESSIONS)}
        self.turns: dict[str, Turn] = {}
        self.start()

    def start(self) -> None:
        self.running = ExitStack()
        self.llm = self.running.enter_context(LLM("demo", runtime=runtime(), **self.options))
        self.server = self.running.enter_context(SteppedServer(self.llm))

    def turn(self, name: str, num_dropped: int, words: str, **choices: Any) -> None:
        """Continue a conversation, or ask again for what came `num_dropped` turns before its end."""
        if name in self.turns or len(self.turns) == NUM_TURNS:
            return
        history = self.histories[name]
        messages = [*history[: len(history) - 2 * num_dropped], {"role": "user", "content": words}]
        if choices["stream"]:
            choices["stream_options"] = {"include_usage": True}
        self.turns[name] = self.server.send({"model": "demo", "messages": messages, "session_id": name, **choices})
        self.compare_finished()

    def step(self, count: int) -> None:
        for _ in range(count):
            self.server.step()
        self.compare_finished()

    def compare_finished(self) -> None:
        """Compare the answers of turns that have ended."""
        for name, turn in list(self.turns.items()):
            if self.server.is_open(turn):
                continue
            del self.turns[name]
            reply, expected = turn.reply.result(60), answer_alone(turn.body, self.options["context_shift"])
            assert reply == expected, turn.body
            assert reply.code in (None, "context_length_exceeded")
            self.done["answered" if reply.code is None else "refused"] += 1
            self.done["shifted"] += turn.body["n"] == 1 and sum(reply.num_tokens) > CONTEXT
            answered = [{"role": "assistant", "content": reply.texts[0]}] if reply.code is None else []
            self.histories[name] = [*turn.body["messages"], *answered] if answered else []

    def fork(self, name: str, other: str) -> None:
        """Begin a session anew with the messages of another."""
        if name not in self.turns:
            self.histories[name] = list(self.histories[other])

    def disconnect(self, name: str) -> None:
        """Close the connection of a turn: of this session's, or else of the first one that is open."""
        if self.turns:
            name = name if name in self.turns else next(iter(self.turns))
            self.server.disconnect(self.turns.pop(name))
            self.done["disconnected"] += 1

    def manage(self, index: int, actions: str) -> None:
        """Do something with one of the sessions that the server knows."""
        names = sorted(self.names())
        for action in actions.split() if names else ():
            method, path = ("DELETE", "") if action == "delete" else ("POST", f"/{action}")
            response = self.server.call(method, f"/v1/sessions/{names[index % len(names)]}{path}")
            assert response.status_code in (200, 400, 404), response.text
            known = ("Try again later", "hold half")
            assert response.status_code != 400 or any(words in response.text for words in known), response.text
            self.done[action] += response.status_code == 200

    def change_limits(self, **limits: int) -> None:
        assert self.server.call("PATCH", "/admin/limits", limits).status_code == 200

    def restart(self) -> None:
        """Restart the server when all turns have ended: sessions are saved, and their next turns load them."""
        while self.turns:
            self.step(1)
        known = self.names()
        self.done["continued"] += len(known)
        self.close()
        self.start()
        assert self.names() == known

    def close(self) -> None:
        self.done["preempted"] += self.llm.engine.num_preemptions
        self.done["swapped in"] += EngineStats.of(self.llm.engine).swapped_in_bytes > 0
        self.running.close()

    def names(self) -> set[str]:
        return {each["id"] for each in self.server.call("GET", "/v1/sessions").json()["data"]}

    def finish(self) -> None:
        """End all turns and delete all sessions: nothing is left in the cache."""
        while self.turns:
            self.step(1)
        for name in SESSIONS:
            self.server.call("DELETE", f"/v1/sessions/{name}")
        cache = self.llm.cache
        assert (cache.usage, cache.num_swapped_blocks, cache.num_sequences) == (0.0, 0, 0)


MIN_OPERATIONS = 80 if is_extended() else 40


def test_every_answer_is_that_of_a_lone_request() -> None:
    done: Counter[str] = Counter()

    @given(
        operations=st.lists(OPERATION, min_size=MIN_OPERATIONS, max_size=2 * MIN_OPERATIONS),
        num_kv_blocks=st.sampled_from([50, 60]),
        swap_space=st.sampled_from([0.01, 2e-4, 0.0]),
        prefers_swap=st.booleans(),
        context_shift=st.booleans(),
        kv_store=st.sampled_from([None, "host:64MiB", "disk"]),
        max_sessions=st.sampled_from([100, 100, 2]),
    )
    @settings(max_examples=scaled(600), deadline=None, suppress_health_check=list(HealthCheck))
    def run(operations: list[Operation], prefers_swap: bool, kv_store: str | None, **options: Any) -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(SwapVsRecomputeCosts, "prefers_swap", lambda *_: prefers_swap)
            kv_store = f"disk:{folder}/store" if kv_store == "disk" else kv_store
            conversations = Conversations({**options, "kv_store": kv_store, "session_dir": f"{folder}/sessions"}, done)
            try:
                for name, arguments in operations:
                    getattr(conversations, name)(**arguments)
                conversations.finish()
            finally:
                conversations.close()

    run()
    print(dict(done))
    effects = ("answered", "shifted", "preempted", "swapped in", "disconnected", "continued", "save", "load", "protect")
    assert min(done[effect] for effect in effects) > 0, done
