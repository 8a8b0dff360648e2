"""The end of a server: who is not finished in time is told, and who does not listen is cut off."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from aethermind import LLM
from aethermind.server.limits import Admission, Limits
from aethermind.server.open_requests import OpenRequests
from aethermind.server.run import bind, dismiss, running


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
        models = SimpleNamespace(loaded=(SimpleNamespace(engine=SimpleNamespace(close=close)),))
        state = SimpleNamespace(admission=admission, open_requests=requests, models=models)
        await dismiss(SimpleNamespace(state=state))  # type: ignore[arg-type]
        answer.close()
        await dismiss(SimpleNamespace(state=state))  # type: ignore[arg-type]  # nobody is there any more
        return happened

    assert asyncio.run(stop(is_heard=True)) == ["engine closed"]
    assert asyncio.run(stop(is_heard=False)) == ["engine closed", "cut"]


def test_a_body_that_is_half_there_is_not_waited_for(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    async def stop() -> tuple[bytes, float]:
        with bind("127.0.0.1", 0) as listening:
            async with running({"demo": llm}, listening, limits=Limits()) as app:
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
                writer.write(head + b'{"mod')
                while b"aethermind_http_requests_open 1.0" not in app.state.metrics.render():
                    await asyncio.sleep(0)
                app.state.admission.close()
                answer = await reader.read()
                began = time.monotonic()
            writer.close()
        return answer, time.monotonic() - began

    answer, seconds = asyncio.run(stop())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in head
    assert json.loads(body)["error"]["code"] == "draining"
    assert seconds < 4
    assert not caplog.records
