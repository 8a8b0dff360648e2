"""Idle sessions, twenty times as many as the KV cache holds: their turns swap them in, also behind a restart."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from tests.end_to_end.models import copy_demo
from tests.soak.report import Figure, percentile
from tests.soak.server import Server, started

__all__ = ["sessions"]

SHAPES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
"""11 million random weights beside the embeddings, in 16 bits. A token takes 11 million operations for each KiB of its
keys and values; of Qwen2-0.5B, which gains more by swapping, it takes 60 million."""

_BYTES_PER_TOKEN = 2048
_NUM_WORDS = 400
_BLOCK = 16
_BLOCKS_OF_SESSION = 32
_NUM_TURNS = 200
_WORDS = ("the", "old", "fox", "sat", "by", "sea", "and", "looked", "for", "friend", "who", "knew", "where", "moon")


@dataclass
class Turn:
    """An answer: its text, the seconds until its first token, and how many tokens of its prompt were cached."""

    text: str = ""
    first_token_s: float = 0.0
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0


@dataclass
class Conversation:
    """A session: its messages, and the tokens of its last prompt."""

    name: str
    messages: list[dict[str, str]] = field(default_factory=list)
    num_tokens: int = 0


def sessions(flags: Sequence[str], num_sessions: int) -> list[Figure]:
    """Begin sessions, continue some of them, restart the server and continue some again.

    Each turn is compared with, and timed against, one that computes the whole conversation.
    """
    chance = random.Random(0)
    conversations = [Conversation(f"chat-{index}") for index in range(num_sessions)]
    num_turns = min(_NUM_TURNS, num_sessions)
    with TemporaryDirectory() as folder:
        model = copy_demo(Path(folder) / "model", SHAPES)
        num_in_cache = max(num_sessions // 20, 4)
        num_blocks = num_in_cache * _BLOCKS_OF_SESSION
        swap_gib = num_sessions * _BLOCKS_OF_SESSION * _BLOCK * _BYTES_PER_TOKEN / 2**30
        command = ["--model", f"soak={model}", "--load-format", "dummy", "--max-model-len", "1024"]
        command += ["--num-kv-blocks", str(num_blocks), "--swap-space", f"{swap_gib:.3f}"]
        command += ["--max-sessions", str(num_sessions), "--session-ttl", "1e6", "--session-dir", f"{folder}/sessions"]
        command += flags
        with started(command) as server, _client(server) as client:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda one: _continue(client, one, random.Random(one.name)), conversations))
            states = _states(client)
            resumed = [_compare(client, one, chance) for one in chance.sample(conversations, num_turns)]
        with started(command) as server, _client(server) as client:
            saved = _states(client)
            loaded = [_compare(client, one, chance) for one in chance.sample(conversations, num_turns)]
    swapped_s, loaded_s, computed_s = (
        percentile(seconds, 0.5)
        for seconds in (
            [turn.first_token_s for turn, _, _ in resumed],
            [turn.first_token_s for turn, _, _ in loaded],
            [alone.first_token_s for _, alone, _ in (*resumed, *loaded)],
        )
    )
    both = [*resumed, *loaded]
    return [
        Figure("sessions", num_sessions),
        Figure("sessions that are not swapped out", num_sessions - states["swapped"], 1.2 * num_in_cache),
        Figure("sessions lost by the restart", num_sessions - saved["saved"], 0),
        Figure("turns that differ from a computed one", sum(turn.text != alone.text for turn, alone, _ in both), 0),
        Figure("turns that lost cached tokens", sum(is_lost for _, _, is_lost in both), 0),
        Figure("ms to the first token of a turn, computed", 1e3 * computed_s),
        Figure("ms to the first token of a turn, swapped in", 1e3 * swapped_s),
        Figure("ms to the first token of a turn, loaded", 1e3 * loaded_s),
        Figure("swapped in, fraction of computed", swapped_s / computed_s, 0.2, is_timing=True),
    ]


def _client(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=120, trust_env=False)


def _states(client: httpx.Client) -> Counter[str]:
    return Counter(each["state"] for each in client.get("/v1/sessions").json()["data"])


def _compare(client: httpx.Client, one: Conversation, chance: random.Random) -> tuple[Turn, Turn, bool]:
    """A turn, the same one computed as a whole, and whether the first one found less than the session had."""
    num_known = one.num_tokens
    turn = _continue(client, one, chance)
    asked = one.messages[:-1]
    alone = _ask(client, asked, cache_salt=f"{one.name} {chance.random()}")
    assert alone.num_cached_tokens == 0, "the reference is computed"
    return turn, alone, turn.num_cached_tokens < num_known // _BLOCK * _BLOCK


def _continue(client: httpx.Client, one: Conversation, chance: random.Random) -> Turn:
    """The next turn of a session, the first of which is long."""
    num_words = 4 if one.messages else _NUM_WORDS
    text = " ".join(chance.choice(_WORDS) for _ in range(num_words))
    one.messages.append({"role": "user", "content": f"{one.name}: {text}"})
    turn = _ask(client, one.messages, session_id=one.name)
    one.messages.append({"role": "assistant", "content": turn.text})
    one.num_tokens = turn.num_prompt_tokens
    return turn


def _ask(client: httpx.Client, messages: list[dict[str, str]], **members: Any) -> Turn:
    body: dict[str, Any] = {
        "model": "soak",
        "messages": messages,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    body |= {"stream_options": {"include_usage": True}, **members}
    turn, begin_s = Turn(), time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            for choice in event["choices"]:
                turn.text += choice["delta"].get("content") or ""
                if turn.text and not turn.first_token_s:
                    turn.first_token_s = time.perf_counter() - begin_s
            if usage := event.get("usage"):
                turn.num_prompt_tokens = usage["prompt_tokens"]
                turn.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return turn
