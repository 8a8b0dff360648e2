"""llama.cpp, by the functions that llama-bench and llama-batched-bench call."""

from __future__ import annotations

import ctypes
from argparse import Namespace
from collections.abc import Sequence

import llama_cpp
from serve import prompt, serve, timed

BATCH = 2048  # llama-bench's default


class LlamaCpp:
    """Tokens are fed without sampling, as llama-bench does.

    Contexts stay in their sequences, and what was decoded after them is taken back. Where it cannot be, because a
    recurrent state has read it, contexts are read again.
    """

    def __init__(self, arguments: Namespace) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(arguments.model.encode(), model_params)
        if not self._model:
            raise RuntimeError(f"{arguments.model} could not be loaded")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = arguments.max_context * arguments.max_batch
        params.n_batch = BATCH
        params.n_seq_max = arguments.max_batch
        params.n_threads = params.n_threads_batch = arguments.threads
        for name, value in arguments.options.items():
            setattr(params, name, value)
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("the context could not be made")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._held: tuple[int, int] | None = None

    def prefill(self, tokens: int, nonce: int) -> float:
        self._held = None
        llama_cpp.llama_memory_clear(self._memory, True)
        return self._read(prompt(tokens, nonce), sequence=0)

    def decode(self, context: int, tokens: int) -> float:
        return self.batched(1, context, tokens)

    def batched(self, batch: int, context: int, tokens: int) -> float:
        if self._held != (batch, context) or not all(
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, context, -1) for sequence in range(batch)
        ):
            llama_cpp.llama_memory_clear(self._memory, True)
            for sequence in range(batch):
                self._read(prompt(context, 1000 + sequence), sequence)
            self._held = batch, context
        self._step(batch, context)  # threads that were asleep wake up

        def steps() -> None:
            for index in range(tokens):
                self._step(batch, context + 1 + index)

        return timed(steps)

    def _read(self, ids: Sequence[int], sequence: int) -> float:
        """Seconds that the library takes for a prompt, without those of filling its batches from Python."""
        seconds = 0.0
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            rows = [(token, start + index, sequence) for index, token in enumerate(part)]
            self._fill(rows, wanted={len(rows) - 1})
            seconds += timed(self._process)
        return seconds

    def _step(self, batch: int, position: int) -> None:
        rows = [(prompt(1, position + sequence)[0], position, sequence) for sequence in range(batch)]
        self._fill(rows, wanted=set(range(batch)))
        self._process()

    def _fill(self, rows: Sequence[tuple[int, int, int]], wanted: set[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, sequence) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = ctypes.c_int8(index in wanted).value

    def _process(self) -> None:
        if llama_cpp.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)


if __name__ == "__main__":
    serve(LlamaCpp)
