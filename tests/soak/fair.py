"""A user with one request beside a user with sixty-four: under the policy `fair` the crowd is not in the way."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from tests.soak.client import Answer, ask
from tests.soak.load import body, until_idle
from tests.soak.report import Figure
from tests.soak.server import KEY, Server

__all__ = ["FLAGS", "fair"]

_HEAVY = "heavy"
_NUM_HEAVY = 64
_NUM_SEATS = 32
"""Half the crowd runs, so that whoever comes has to be given a seat."""
_NUM_TOKENS = 400
"""Of each answer of the crowd: long enough that its first half is still running when it was seen to run."""

FLAGS = (
    *("--max-model-len", "512", "--max-concurrent-requests", "512", "--max-num-seqs", str(_NUM_SEATS)),
    *("--scheduling-policy", "fair", "--api-key", KEY, "--api-key", _HEAVY),
)


async def fair(server: Server, num_rounds: int) -> list[Figure]:
    """The light user's first token with the machine to itself, and with the crowd there.

    Of the crowd, who was given a seat after the light user asked has to finish after it: how fast the machine is and
    how late this client reads change nothing about that.
    """
    alone_s, beside_s, steps_s = [], [], []
    overtakers = 0
    for turn in range(num_rounds):
        first, usual_s, _ = await _light(server, 2 * turn)
        crowd = asyncio.gather(*(_heavy(server, 1000 * (turn + 1) + i) for i in range(_NUM_HEAVY)))
        while not crowd.done() and (await asyncio.to_thread(server.samples))["num_requests_running"] < _NUM_SEATS:
            await asyncio.sleep(0.01)
        second, loaded_s, asked_s = await _light(server, 2 * turn + 1)
        answers = [first, second, *await crowd]
        await until_idle(server)
        if failures := sum(one.failure is not None for one in answers):
            return [Figure("rounds", turn), Figure("failures", failures, 0)]
        told = answers[2:]
        overtakers += sum(asked_s < one.pieces_s[0] < one.pieces_s[-1] < second.pieces_s[-1] for one in told)
        alone_s.append(usual_s)
        beside_s.append(loaded_s)
        steps_s.append(median((one.pieces_s[-1] - one.pieces_s[0]) / (_NUM_TOKENS - 1) for one in told))
    steps = median((late - usual) / step for late, usual, step in zip(beside_s, alone_s, steps_s, strict=True))
    return [
        Figure("rounds", num_rounds),
        Figure("failures", 0, 0),
        Figure("of the crowd, seated after the light user and finished before it", overtakers, 0),
        Figure("milliseconds to a first token, alone", median(alone_s) * 1e3),
        Figure("milliseconds to a first token, beside the crowd", median(beside_s) * 1e3),
        Figure("milliseconds of the crowd's steps", median(steps_s) * 1e3),
        Figure("steps that the crowd costs", steps, 3, True),
    ]


async def _heavy(server: Server, index: int) -> Answer:
    return await ask(server, body(server, index, max_tokens=_NUM_TOKENS), key=_HEAVY)


async def _light(server: Server, index: int) -> tuple[Answer, float, float]:
    """Its answer, the seconds until its first token, and when it asked."""
    asked_s = time.perf_counter()
    answer = await ask(server, body(server, index, max_tokens=4))
    return answer, (answer.pieces_s[0] if answer.pieces_s else time.perf_counter()) - asked_s, asked_s
