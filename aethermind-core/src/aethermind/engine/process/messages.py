"""What the server's process and an engine's say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.engine.requests.prompt_reader import EnginePrompt
    from aethermind.engine.requests.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["ALL", "Abort", "Add", "Ask", "CALLS", "Close", "Forget", "Loaded", "LogLine", "News", "Reply", "Setup"]

CALLS = frozenset({"adjust", "embed"})
"""What can be asked of an engine besides answers, by the names of its methods; `EngineClient` asks for it. Arguments
and results are values that `wire` knows.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: what to load, and the least severe log records that are wanted."""

    model: str
    config: EngineConfig
    log_level: int


@dataclass(frozen=True, slots=True)
class Add:
    """A request. It is called by its handle, which never comes again; its name stands in sentences for people."""

    handle: int
    name: str
    prompt: EnginePrompt
    params: SamplingParams
    options: RequestOptions | None
    hold_s: float
    """How long what is new of its answer may be held back."""


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request and tell what there is of it."""

    handle: int


@dataclass(frozen=True, slots=True)
class Forget:
    """End a request if it has not ended; nobody waits for it any more."""

    handle: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Have one of the engine's methods in `CALLS` called between two steps. The reply has the same number."""

    number: int
    what: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Close:
    """The last message: stop after the step under way."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready; these are its facts."""

    info: ModelInfo
    sampling_defaults: dict[str, Any]
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What an `Ask` came to: a value, or an error."""

    number: int
    value: Any
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record, its traceback as text. `created` is in seconds since the epoch."""

    level: int
    name: str
    text: str
    created: float
    traceback: str | None


@dataclass(frozen=True, slots=True)
class News:
    """All that an engine's process has to say since it last could; parts of it are mostly empty."""

    logs: list[LogLine]
    progress: tuple[int, int] | None = None
    """Of loading: done, total."""
    loaded: Loaded | None = None
    failure: Exception | None = None
    """Why the model could not be loaded; nothing comes after that."""
    replies: list[Reply] | None = None
    refused: list[tuple[int, Exception]] | None = None
    """Handles of requests that were not taken, and why."""
    states: list[list[Any]] | None = None
    """What is new of answers, see `growth`."""
    stats: EngineStats | None = None


ALL = (Setup, Add, Abort, Forget, Ask, Close, Loaded, Reply, LogLine, News)
