"""One streamed answer over HTTP: when its text came, what it took, or why there is none. Needs httpx."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from aethermind.cli.bench.serve.outcome import Outcome
from aethermind.cli.remote import EventCutter, code_of, error_of, text_of

__all__ = ["ask_once"]


async def ask_once(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], outcome: Outcome, limit_s: float
) -> None:
    """Send a request and record its answer; what goes wrong is recorded as the kind of its failure."""
    try:
        async with asyncio.timeout(limit_s), client.stream("POST", path, json=body) as response:
            if response.status_code == 200:
                await _record(response, outcome)
            else:
                await response.aread()
                outcome.failure = " ".join((f"HTTP {response.status_code}", *code_of(error_of(response))))
    except TimeoutError:
        outcome.failure = "timeout"
    except httpx.ConnectError:
        outcome.failure = "no connection"
    except httpx.HTTPError:
        outcome.failure = "connection lost"
    except (ValueError, TypeError, AttributeError):  # events that are no JSON, or not such as OpenAI's API has
        outcome.failure = "not understood"
    outcome.finished_s = time.perf_counter()


async def _record(response: httpx.Response, outcome: Outcome) -> None:
    is_whole = False
    usage: dict[str, Any] = {}
    async for now, data in _events(response):
        if data == b"[DONE]":
            is_whole = True
            break
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            outcome.failure = " ".join(("error in the stream:", *code_of(error if isinstance(error, dict) else {})))
            return
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            is_end = choice.get("finish_reason") is not None
            is_whole = is_whole or is_end
            if text_of(choice) or (is_end and not outcome.texts_s):
                outcome.texts_s.append(now)
    outcome.num_output_tokens = usage.get("completion_tokens") or len(outcome.texts_s)
    outcome.num_prompt_tokens = usage.get("prompt_tokens") or outcome.num_prompt_tokens
    if not is_whole or not outcome.texts_s:
        outcome.failure = "cut off"


async def _events(response: httpx.Response) -> AsyncIterator[tuple[float, bytes]]:
    """The events' data, each with when it came."""
    cutter = EventCutter()
    async for chunk in response.aiter_bytes():
        now = time.perf_counter()
        for data in cutter.push(chunk):
            yield now, data
