"""What a server needs of an engine, whether it runs in this process (`AsyncEngine`) or in one of its own.

Everything that crosses is a plain value: token ids, parameters, answers, vectors. Whoever needs something more of an
engine adds a method here, named after what it does; a function over the engine itself cannot leave the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from aethermind.engine.serving.open_requests import OpenRequests
from aethermind.errors import EngineDeadError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["EngineClient"]


class EngineClient(ABC):
    """One engine for the tasks of one event loop. Whatever is asked while it is down raises its `failure`."""

    def __init__(self) -> None:
        self._requests = OpenRequests(EngineDeadError("The engine was not started; use `async with`."))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> EngineDeadError | None:
        """Why nothing is served at the moment, and whether that will change; None while requests are served."""
        return self._requests.failure

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._requests.failure is None

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._requests)

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The id of the engine's process; None where it has none of its own, or there is none at the moment."""

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """What the engine does at the moment, or did last when it could tell."""

    @abstractmethod
    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids. InvalidArgumentError says what is wrong with it."""

    @abstractmethod
    def generate(
        self,
        prompt: Prompt | EnginePrompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        hold_s: float = 0.0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer so far whenever it has grown, the finished one last. `options` are about the whole request.

        Leaving the loop, cancelling the task or closing the generator ends the request and frees its blocks.

        What is new of a growing answer may be held back for `hold_s` seconds, so that more of it is told at once; its
        first token and its end never are.

        Raises InvalidArgumentError and ContextLengthError for what cannot be served, RequestTimeoutError when the
        answer is not finished after `timeout_s` seconds, EngineDeadError when the engine failed or was closed.
        """

    def abort(self, request_id: str) -> bool:
        """End an open request; whoever waits for it gets what there is, finished with `abort`. False if none is."""
        return self._requests.abort(request_id, self._abort)

    async def embed(
        self, prompt: EnginePrompt, pooling: str | None, *, is_normalized: bool, adapter: str = ""
    ) -> npt.NDArray[np.float32]:
        """The vector of a text, float32 [hidden_size] (see `Engine.embed`), computed between two steps."""
        token_ids = list(prompt.tokens_to_embed())
        vector: npt.NDArray[np.float32] = await self._ask(
            "embed", token_ids=token_ids, pooling=pooling, is_normalized=is_normalized, adapter=adapter
        )
        return vector

    async def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> None:
        """Change the limits of the steps to come (see `Engine.adjust`), until the engine is started again."""
        await self._ask(
            "adjust",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_prefill_chunk=max_prefill_chunk,
        )

    async def drain(self) -> None:
        """Wait until no request is open. New ones are still taken: whoever drains turns them away at the door."""
        await self._requests.drained()

    @abstractmethod
    async def close(self) -> None:
        """Stop after the step under way; requests that are open end with EngineDeadError."""

    @abstractmethod
    async def _ask(self, what: str, **arguments: Any) -> Any:
        """Have the engine's method of that name called between two steps; returns or raises what it does."""

    @abstractmethod
    def _abort(self, name: str) -> None:
        """Have the engine end a request that was added, and tell what there is of it."""
