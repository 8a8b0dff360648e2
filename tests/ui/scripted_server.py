"""A server that hands out the real page and says, word for word and when it is told to, what a test lets it say."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from aethermind.server.run import bind
from aethermind.server.web_ui import router as web_ui_routes

__all__ = ["Answer", "ScriptedServer"]

PATIENCE_S = 20.0


@dataclass
class Answer:
    """An open answer to one request. What is said goes to the page at once."""

    url: str
    body: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    _left: threading.Event = field(default_factory=threading.Event)

    def say(self, text: str) -> None:
        """Stream some text."""
        self._send({"choices": [{"delta": {"content": text}, "text": text, "finish_reason": None}]})

    def think(self, text: str) -> None:
        """Stream some of what the model thinks before it speaks."""
        self._send({"choices": [{"delta": {"reasoning_content": text}, "finish_reason": None}]})

    def finish(self, reason: str = "stop", *, cached: int = 0) -> None:
        """End the answer as the server would, with what it took: 12 tokens read and 7 written."""
        usage = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": cached}}
        self._send({"choices": [{"delta": {}, "finish_reason": reason}]})
        self._send({"choices": [], "usage": usage})
        self._send(None)

    def fail(self, message: str) -> None:
        """Break off with an error."""
        self._send({"error": {"message": message}})
        self._send(None)

    def await_left(self) -> None:
        """Wait until the page has closed the stream."""
        assert self._left.wait(PATIENCE_S), "the page still listens"

    def _send(self, event: dict[str, Any] | None) -> None:
        self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    async def lines(self) -> AsyncIterator[str]:
        """The stream."""
        try:
            while (event := await self.events.get()) is not None:
                yield f"data: {json.dumps(event)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self._left.set()


class ScriptedServer:
    """Serves from a thread of its own. It can be stopped, and started again at the same address."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.refusal: str | None = None
        self._questions: queue.Queue[Answer] = queue.Queue()
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def next_question(self) -> Answer:
        """Wait for the next request that wants an answer."""
        return self._questions.get(timeout=PATIENCE_S)

    def start(self) -> None:
        """Listen."""
        self._listening = bind("127.0.0.1", self._port)
        self._port = self._listening.getsockname()[1]
        config = uvicorn.Config(self._app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()

    def stop(self) -> None:
        """Go away, in the middle of whatever is being said."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._listening.close()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(web_ui_routes)

        @app.get("/ready")
        async def ready() -> Response:
            return Response()

        @app.get("/v1/models")
        async def models(request: Request) -> Response:
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "The API key is missing or wrong."}}, 401)
            return JSONResponse({"data": [{"id": name, "max_model_len": 4096} for name in ("storyteller", "clerk")]})

        @app.post("/tokenize")
        async def tokenize(request: Request) -> dict[str, Any]:
            body = await request.json()
            return {"tokens": [1, 2, 3] if "messages" in body else [7, 8], "max_model_len": 4096}

        @app.post("/v1/completions")
        @app.post("/v1/chat/completions")
        async def answer(request: Request) -> Response:
            if self.refusal is not None:
                return JSONResponse({"error": {"message": self.refusal}}, 400)
            answer = Answer(request.url.path, await request.json(), asyncio.get_running_loop())
            self._questions.put(answer)
            return StreamingResponse(answer.lines(), media_type="text/event-stream")

        return app
