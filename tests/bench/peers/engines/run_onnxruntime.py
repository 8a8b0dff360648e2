"""ONNX Runtime GenAI: one generator a request. It has no continuous batching, so batches are not measured."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import onnxruntime_genai as og
from serve import prompt, serve, timed


class OnnxRuntimeGenai:
    """The generator of a context is kept, and what was decoded after it is taken back."""

    def __init__(self, arguments: Namespace) -> None:
        config = og.Config(arguments.model)
        config.overlay(
            f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {arguments.threads}}}}}}}}}'
        )
        self._model = og.Model(config)
        self._held: tuple[int, og.Generator] | None = None

    def prefill(self, tokens: int, nonce: int) -> float:
        self._held = None
        generator = self._generator(tokens + 8)

        def work() -> None:
            generator.append_tokens(np.array(prompt(tokens, nonce), dtype=np.int32))
            generator.generate_next_token()

        return timed(work)

    def decode(self, context: int, tokens: int) -> float:
        if self._held is None or self._held[0] != context:
            generator = self._generator(context + 512)
            generator.append_tokens(np.array(prompt(context, 1000), dtype=np.int32))
            self._held = context, generator
        generator = self._held[1]
        generator.generate_next_token()
        generator.generate_next_token()

        def work() -> None:
            for _ in range(tokens):
                generator.generate_next_token()

        seconds = timed(work)
        generator.rewind_to(context - 1)
        generator.append_tokens(np.array(prompt(context, 1000)[-1:], dtype=np.int32))
        return seconds

    def batched(self, batch: int, context: int, tokens: int) -> float:
        raise NotImplementedError("continuous batching")

    def _generator(self, max_length: int) -> og.Generator:
        params = og.GeneratorParams(self._model)
        params.set_search_options(max_length=max_length, min_length=max_length, do_sample=False)
        return og.Generator(self._model, params)


if __name__ == "__main__":
    serve(OnnxRuntimeGenai)
