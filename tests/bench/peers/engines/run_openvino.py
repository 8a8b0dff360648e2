"""OpenVINO GenAI's continuous batching pipeline, which its LLMPipeline runs on as well."""

from __future__ import annotations

import time
from argparse import Namespace

import numpy as np
import openvino
import openvino_genai as genai
from serve import prompt, serve

TOKENS_A_STEP = 4096


class OpenVinoGenai:
    """Prefix caching keeps the contexts of `decode` and `batched`."""

    def __init__(self, arguments: Namespace) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = TOKENS_A_STEP
        scheduler.max_num_seqs = arguments.max_batch
        scheduler.enable_prefix_caching = True
        # Its blocks hold 32 tokens on a CPU. Room for the contexts that are kept and for as many prompts that pass.
        scheduler.num_kv_blocks = 2 * arguments.max_context * arguments.max_batch // 32
        properties = {"INFERENCE_NUM_THREADS": arguments.threads, **arguments.options}
        self._pipeline = genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)
        self._num_requests = 0

    def prefill(self, tokens: int, nonce: int) -> float:
        return self._generate([prompt(tokens, nonce)], 1)[0]

    def decode(self, context: int, tokens: int) -> float:
        return self.batched(1, context, tokens)

    def batched(self, batch: int, context: int, tokens: int) -> float:
        return self._generate([prompt(context, 1000 + index) for index in range(batch)], tokens + 1)[1]

    def _generate(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, float]:
        """Seconds until every request has its first token, and of `max_tokens - 1` further steps of all of them."""
        margin = 2 * len(prompts) if len(prompts) > 1 else 0
        config = genai.GenerationConfig(max_new_tokens=max_tokens + margin, ignore_eos=True, do_sample=False)
        handles = []
        for ids in prompts:
            self._num_requests += 1
            tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, tensor, config))
        counts = [0] * len(prompts)

        def step() -> float:
            self._pipeline.step()
            now = time.perf_counter()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    counts[index] += sum(len(output.generated_ids) for output in handle.read().values())
            return now

        started = all_began = time.perf_counter()
        while not all(counts):
            all_began = step()
        wanted = sum(counts) + (max_tokens - 1) * len(prompts)
        finished = all_began
        while sum(counts) < wanted:
            finished = step()
        while self._pipeline.has_non_finished_requests():
            step()
        return all_began - started, finished - all_began


if __name__ == "__main__":
    serve(OpenVinoGenai)
