"""Plugins that change logits on the host: the stated exception to sampling on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.steps.verification import SampledRow

__all__ = ["process_logits"]


def process_logits(request: SampledRow, logits: npt.NDArray[np.float32]) -> str | None:
    """Let a request's processors change its row, float32 [V]; returns what one of them failed with."""
    assert request.controls is not None, "only requests with controls have processors"
    for name, processor in zip(request.params.logits_processors, request.controls.processors, strict=True):
        try:
            processor(request.prompt_token_ids, request.output_token_ids, logits)
        except Exception as error:  # a stranger's code: its request ends, the others go on
            return f"the logits processor {name} failed with {type(error).__name__}: {error}"
    return None
