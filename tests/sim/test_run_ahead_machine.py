"""Random workloads on a late device: arrivals, cancels, ends and memory shortage, compared with synchronous steps.

12 runs of 30 steps; `make nightly` makes 1,200 of 60.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.scale import is_extended, scaled
from tests.sim.small_model import write_small_model
from tests.sim.watched_engine import open_watched

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.output import RequestOutput
from aethermind.engine.requests.request import RequestOptions

NUM_TOKENS = 9
PROMPTS = [[(5 * index + 13 * token) % 900 + 5 for token in range(2 + 3 * index)] for index in range(4)]
# Two prompts share a prefix longer than a block.
PROMPTS.append([*PROMPTS[3][:9], 77, 78])
LONG = 2
KINDS: list[dict[str, Any]] = [
    *({"temperature": 0.0, "ignore_eos": True, "max_tokens": count} for count in (1, 2, NUM_TOKENS)),
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_p": 0.9, "seed": 4, "stop_token_ids": [*range(0, 2000, 7)]},
    {"temperature": 1.0, "seed": 5, "stop": ["e", "th"]},
    {"temperature": 1.0, "seed": 6, "min_tokens": 4, "stop_token_ids": [*range(0, 2000, 3)]},
    {"temperature": 0.0, "logprobs": 1, "logit_bias": {700: 2.0, 6: -100.0}},
    {"temperature": 0.9, "seed": 8, "logprobs": 0, "allowed_token_ids": range(40, 700), "min_tokens": 3},
    {"temperature": 0.0, "repetition_penalty": 1.4, "logprobs": 2},
    {"temperature": 0.8, "seed": 9, "bad_words": ["e", "th"]},
    {"temperature": 0.7, "seed": 7, "n": 2},
    {"temperature": 0.0, "prompt_logprobs": 0},
]


def params_of(kind: int) -> SamplingParams:
    options = KINDS[kind]
    stops = options.get("stop_token_ids", [])[:64]
    return SamplingParams(**{"max_tokens": NUM_TOKENS, **options, **({"stop_token_ids": stops} if stops else {})})


@cache
def boot() -> tuple[Runtime, Path, TemporaryDirectory[str]]:
    runtime, folder = Runtime.boot(), TemporaryDirectory()
    return runtime, write_small_model(Path(runtime.models.locate("demo")), Path(folder.name) / "model"), folder


@cache
def reference() -> LLM:
    runtime, model, _ = boot()
    return LLM(
        str(model), device="numpy", dtype="float32", max_model_len=48, enable_prefix_caching=False, runtime=runtime
    )


@cache
def output_alone(prompt: int, kind: int) -> RequestOutput:
    """The answer to a single prompt on a synchronous device."""
    (output,) = reference().generate([{"prompt_token_ids": PROMPTS[prompt]}], params_of(kind))
    return output


def alone(prompt: int, kind: int) -> list[list[int]]:
    """The reference answers."""
    return answers_of(output_alone(prompt, kind))


def answers_of(output: RequestOutput) -> list[list[int]]:
    return [one.token_ids for one in output.outputs]


def logprobs_of(output: RequestOutput) -> list[float]:
    """The logprobs of all tokens of all answers that have them."""
    return [
        named[token_id].logprob
        for one in output.outputs
        for token_id, named in zip(one.token_ids, one.logprobs or (), strict=one.logprobs is not None)
    ]


class RunAheadMachine(RuleBasedStateMachine):
    """One engine; `asked` has the prompt and parameters of each open request."""

    @initialize(
        seed=st.integers(0, 99),
        num_blocks=st.sampled_from([6, 7, 9, 40]),
        crowd=st.lists(st.integers(0, 1), max_size=5),
        options=st.fixed_dictionaries(
            {
                "max_num_seqs": st.sampled_from([2, 5]),
                "max_num_batched_tokens": st.sampled_from([4, 7, 64]),
                "enable_prefix_caching": st.booleans(),
                "scheduling_policy": st.sampled_from(["fcfs", "fair", "priority"]),
                "swap_space": st.sampled_from([0.0, 1e-4]),
                "prefill_stream": st.booleans(),
            }
        ),
    )
    def open(self, seed: int, num_blocks: int, crowd: list[int], options: dict[str, Any]) -> None:
        """Many long requests are open from the beginning, so that some are preempted."""
        runtime, model, _ = boot()
        self.patch = pytest.MonkeyPatch()
        self.watched = open_watched(runtime, model, self.patch, seed, num_kv_blocks=num_blocks, **options)
        self.engine = self.watched.engine
        self.engine.costs.seconds_per_byte = 0.0
        self.asked: dict[str, tuple[int, int]] = {}
        for number, prompt in enumerate(crowd):
            self.add(f"crowd {number}", prompt, LONG, "")

    @rule(
        name=st.sampled_from("abcdef"),
        prompt=st.integers(0, len(PROMPTS) - 1),
        kind=st.integers(0, len(KINDS) - 1),
        tenant=st.sampled_from(["", "x", "y"]),
    )
    def add(self, name: str, prompt: int, kind: int, tenant: str) -> None:
        """Request ids are reused as soon as possible."""
        if name not in self.asked:
            self.asked[name] = prompt, kind
            options = RequestOptions(tenant=tenant)
            self.engine.add_request(name, PROMPTS[prompt], params_of(kind), options=options)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        output = self.engine.abort(name)
        assert output is not None
        whole = alone(*self.asked.pop(name))
        assert all(ids in [one[: len(ids)] for one in whole] for ids in answers_of(output))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.engine.has_unfinished:
                self.look_at(self.engine.step())

    def look_at(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert output.error is None
            if output.finished:
                asked = self.asked.pop(output.request_id)
                assert answers_of(output) == alone(*asked), output.request_id
                assert logprobs_of(output) == pytest.approx(logprobs_of(output_alone(*asked)), abs=1e-4)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            for _ in range(1000):
                if not self.engine.has_unfinished:
                    break
                self.look_at(self.engine.step())
            assert self.asked == {}
            stats = EngineStats.of(self.engine)
            assert (stats.num_free_blocks, stats.num_swapped_blocks) == (stats.num_blocks, 0)
            assert self.engine.cache.num_sequences == 0
        finally:
            self.engine.close()
            self.patch.undo()


TestRunAhead = RunAheadMachine.TestCase
TestRunAhead.settings = settings(
    max_examples=scaled(1200),
    stateful_step_count=60 if is_extended() else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
