"""AetherMind, by its public API."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from serve import prompt, serve

from aethermind import LLM, SamplingParams

BLOCK_SIZE = 16


class AetherMind:
    """Prefix caching keeps the contexts of `decode` and `batched`, as it does for a user's conversation."""

    def __init__(self, arguments: Namespace) -> None:
        # Room for the contexts that are kept and for as many prompts that pass.
        kept_tokens = 2 * arguments.max_context * arguments.max_batch
        self._llm = LLM(
            arguments.model,
            num_threads=arguments.threads,
            max_model_len=arguments.max_context,
            max_num_seqs=arguments.max_batch,
            num_kv_blocks=kept_tokens // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            **arguments.options,
        )
        self._shapes: dict[str, list[Any]] = {}

    def prefill(self, tokens: int, nonce: int) -> float:
        """Seconds of one prompt."""
        return self._generate(f"prefill {tokens}", [prompt(tokens, nonce)], 1)[0]

    def decode(self, context: int, tokens: int) -> float:
        """Seconds of steps of one request."""
        return self.batched(1, context, tokens)

    def batched(self, batch: int, context: int, tokens: int) -> float:
        """Seconds of steps of a batch."""
        prompts = [prompt(context, 1000 + index) for index in range(batch)]
        return self._generate(f"batched {batch} {context} {tokens}", prompts, tokens + 1)[1]

    def least(self, job: Mapping[str, Any], memory_bytes_per_s: float, flops_per_s: Mapping[str, float]) -> float:
        """Seconds that a job which was done before takes at least, under these limits."""
        from aethermind.engine.observation.roofline import min_seconds
        from aethermind.hal.backend import MeasuredLimits

        if job["measure"] == "prefill":
            key = f"prefill {job['tokens']}"
        else:
            key = f"batched {job.get('batch', 1)} {job['context']} {job['tokens']}"
        compiled = self._llm.engine.compiled
        limits = MeasuredLimits(memory_bytes_per_s, flops_per_s)
        seconds = min_seconds(compiled.step.plan, compiled.operators, self._shapes[key], limits)
        if seconds is None:
            raise ValueError("a limit is not known")
        return seconds

    def _generate(self, key: str, prompts: list[list[int]], max_tokens: int) -> tuple[float, float]:
        """Seconds until every request has its first token, and of `max_tokens - 1` further steps of all of them.

        The first time (which warms up and is not reported) the shapes of the steps are kept under `key`.
        """
        counts: dict[str, int] = {}
        marks: list[tuple[float, int, int, int]] = []
        recorder = None
        if key not in self._shapes:
            recorder = self._llm.engine.runner.observer = _recorder()
        num_shapes = (lambda: len(recorder.shapes)) if recorder else (lambda: 0)

        def record(output: Any) -> None:
            counts[output.request_id] = len(output.outputs[0].token_ids)
            marks.append((time.perf_counter(), len(counts), sum(counts.values()), num_shapes()))

        # Requests begin one after another where their prompts do not fit one step, so the first ends before the last:
        # a margin of tokens keeps all of them busy while their steps are counted.
        margin = 2 * len(prompts) if len(prompts) > 1 else 0
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens + margin, ignore_eos=True)
        started = time.perf_counter()
        self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, on_output=record)
        began_s, _, produced, began_at = next(mark for mark in marks if mark[1] == len(prompts))
        wanted = produced + (max_tokens - 1) * len(prompts)
        finished_s, _, _, finished_at = next(mark for mark in marks if mark[2] >= wanted)
        if recorder:
            self._llm.engine.runner.observer = None
            first, last = (0, began_at) if max_tokens == 1 else (began_at, finished_at)
            self._shapes[key] = recorder.shapes[first:last]
        return began_s - started, finished_s - began_s


def _recorder() -> Any:
    """Something that keeps the shapes of steps; None for an engine that does not count its work."""
    try:
        from aethermind.engine.observation.roofline import StepRecorder
    except ImportError:
        return None
    return StepRecorder()


if __name__ == "__main__":
    serve(AetherMind)
