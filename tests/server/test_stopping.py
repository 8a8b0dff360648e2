"""The stop of a server: unfinished answers end with an error, and connections that are not read are closed."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from aethermind import LLM
from aethermind.server import run
from aethermind.server.admission import AdmissionController, Limits
from aethermind.server.cancellation import InFlightRequests
from aethermind.server.run import bind, fail_unfinished, running


def test_engines_are_closed_before_connections_are_aborted() -> None:
    async def stop(*, is_read: bool) -> list[str]:
        events: list[str] = []
        admission, requests = AdmissionController(Limits()), InFlightRequests()

        async def close() -> None:
            events.append("engine closed")
            if is_read:
                answer.close()

        def open_answer() -> Any:
            with admission.admit(), requests.registered("req_1", "", lambda: True, lambda: events.append("aborted")):
                yield

        answer = open_answer()
        next(answer)
        engine = SimpleNamespace(close=close)
        models = SimpleNamespace(base_models=(SimpleNamespace(engine=engine),), fail_waiting_requests=lambda: None)
        state = SimpleNamespace(admission=admission, in_flight_requests=requests, models=models)
        await fail_unfinished(SimpleNamespace(state=state))  # type: ignore[arg-type]
        answer.close()
        await fail_unfinished(SimpleNamespace(state=state))  # type: ignore[arg-type]  # no request is in flight
        return events

    assert asyncio.run(stop(is_read=True)) == ["engine closed"]
    assert asyncio.run(stop(is_read=False)) == ["engine closed", "aborted"]


def test_an_incomplete_body_is_rejected_when_the_server_stops(
    llm: LLM, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_FLUSH_S", 3600)  # a server that waits for the rest of the body never ends

    async def stop() -> bytes:
        with bind("127.0.0.1", 0) as listening:
            async with running({"demo": llm}, listening, limits=Limits()) as app:
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
                writer.write(head + b'{"mod')
                while b"aethermind_http_requests_open 1.0" not in app.state.metrics.render():
                    await asyncio.sleep(0)
                app.state.admission.close()
                answer = await reader.read()
            writer.close()
        return answer

    answer = asyncio.run(stop())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in head
    assert json.loads(body)["error"]["code"] == "draining"
    assert not caplog.records
