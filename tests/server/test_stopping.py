"""The end of a server: who is not finished in time is told, and who does not listen is cut off."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aethermind.server.limits import Admission, Limits
from aethermind.server.open_requests import OpenRequests
from aethermind.server.run import dismiss


def test_engines_end_before_connections_are_cut() -> None:
    async def stop(*, is_heard: bool) -> list[str]:
        happened: list[str] = []
        admission, requests = Admission(Limits()), OpenRequests()

        async def close() -> None:
            happened.append("engine closed")
            if is_heard:
                answer.close()

        def open_answer() -> Any:
            with admission.enter(), requests.holding("req_1", "", lambda: True, lambda: happened.append("cut")):
                yield

        answer = open_answer()
        next(answer)
        models = [SimpleNamespace(engine=SimpleNamespace(close=close))]
        state = SimpleNamespace(admission=admission, open_requests=requests, models=models)
        await dismiss(SimpleNamespace(state=state))  # type: ignore[arg-type]
        answer.close()
        await dismiss(SimpleNamespace(state=state))  # type: ignore[arg-type]  # nobody is there any more
        return happened

    assert asyncio.run(stop(is_heard=True)) == ["engine closed"]
    assert asyncio.run(stop(is_heard=False)) == ["engine closed", "cut"]
