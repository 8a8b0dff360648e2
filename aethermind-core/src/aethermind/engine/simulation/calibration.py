"""The costs of a step, measured on a model: steps of many kinds, and the line that fits them best."""

from __future__ import annotations

import time
from dataclasses import fields
from statistics import median
from typing import TYPE_CHECKING

from aethermind.engine.observation.sample_prompt import sample_prompt
from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.sampling.params import SamplingParams

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["fit_costs", "measure_costs"]

_NUM_REPEATS = 5


def measure_costs(engine: Engine) -> StepCosts:
    """Time prefill and decode steps of an idle engine whose prefix cache is off, and fit them.

    Prompts fill a quarter, a half and the whole of a step; decodes run for 1, 4 and 16 sequences at short and long
    contexts, as far as the engine's limits let them.
    """
    most = min(engine.budget.max_num_batched_tokens, engine.planned.max_model_len - _NUM_REPEATS - 2)
    rows = [_prefill(engine, num_tokens) for num_tokens in sorted({max(most // part, 1) for part in (4, 2, 1)}) * 3]
    for num_sequences in (1, 4, 16):
        if num_sequences <= engine.budget.max_num_seqs:
            rows += [_decode(engine, num_sequences, context) for context in (max(most // 16, 1), most)]
    return fit_costs(rows)


def fit_costs(rows: list[tuple[float, float, float, float]]) -> StepCosts:
    """Least squares of relative errors over `(prefill tokens, decodes, context tokens, seconds)`, nothing negative."""
    import numpy as np

    table = np.array([(1.0, *row[:3]) for row in rows]) / np.array([row[3] for row in rows])[:, None]
    kept = list(range(table.shape[1]))
    while True:
        found = np.linalg.lstsq(table[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            break
        del kept[int(found.argmin())]  # what would have to cost less than nothing costs nothing
    values = dict(zip(kept, found.tolist(), strict=True))
    return StepCosts(*(values.get(column, 0.0) for column in range(len(fields(StepCosts)))))


def _prefill(engine: Engine, num_tokens: int) -> tuple[float, float, float, float]:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    engine.add_request("prefill", _prompt(engine, num_tokens, 0), params)
    return num_tokens, 0.0, num_tokens, _timed_step(engine)


def _decode(engine: Engine, num_sequences: int, context: int) -> tuple[float, float, float, float]:
    params = SamplingParams(temperature=0.0, max_tokens=_NUM_REPEATS + 1, ignore_eos=True)
    fitting = max(1, min(context, engine.cache.pool.num_blocks * engine.cache.spec.block_size // num_sequences - 8))
    for index in range(num_sequences):
        engine.add_request(f"decode {index}", _prompt(engine, fitting, index), params)
    while engine.waiting or any(request.is_prefilling for request in engine.running):
        engine.step()
    lengths = [request.num_tokens for request in engine.running]
    seconds = []
    while engine.has_unfinished:
        seconds.append(_timed_step(engine))
    return 0.0, len(lengths), sum(lengths), median(seconds)


def _prompt(engine: Engine, num_tokens: int, index: int) -> list[int]:
    vocab_size = engine.planned.model.config.vocab_size
    return sample_prompt(num_tokens, vocab_size, index)


def _timed_step(engine: Engine) -> float:
    started = time.perf_counter()
    engine.step()
    return time.perf_counter() - started
