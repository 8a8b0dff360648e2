"""What can be asked of an engine in another process besides answers: functions of the engine, by name.

Arguments and results are values that `wire` knows. A new one stands here and in `EngineClient`, which asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["CALLS"]


def _embed(engine: Engine, token_ids: list[int], pooling: str | None, is_normalized: bool, adapter: str) -> Any:
    return engine.embed(token_ids, pooling, is_normalized=is_normalized, adapter=adapter)


def _adjust(engine: Engine, **limits: int | None) -> None:
    engine.adjust(**limits)


CALLS: Mapping[str, Callable[..., Any]] = {"adjust": _adjust, "embed": _embed}
