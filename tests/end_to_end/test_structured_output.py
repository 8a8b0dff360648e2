"""Whatever is demanded of an answer's text, a weak model keeps it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from tests.end_to_end.schemas import SCHEMAS

from aethermind import LLM, Runtime, SamplingParams, StructuredOutputs
from aethermind.errors import AetherMindError, InvalidArgumentError

PROMPT = "Once upon a time"


def demanding(temperature: float = 1.0, seed: int = 0, max_tokens: int = 60, **wanted: Any) -> SamplingParams:
    demands = StructuredOutputs(**wanted)
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, structured_outputs=demands)


def test_500_answers_by_50_schemas_parse_and_validate(runtime: Runtime) -> None:
    assert len(SCHEMAS) == 50
    for schema in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schema)
    options = {"max_model_len": 512, "max_num_seqs": 50, "num_kv_blocks": 1600}
    with LLM("demo", device="cpu", dtype="float32", runtime=runtime, **options) as llm:
        for repeat in range(10):
            temperature = 0.0 if repeat == 0 else 1.0
            prompts = [f"Story {repeat}: once upon a time" for _ in SCHEMAS]
            params = [
                demanding(temperature, 100 * repeat + index, 400, json=schema) for index, schema in enumerate(SCHEMAS)
            ]
            for schema, output in zip(SCHEMAS, llm.generate(prompts, params), strict=True):
                (completion,) = output.outputs
                assert completion.finish_reason == "stop", completion.text
                jsonschema.validate(json.loads(completion.text), schema, format_checker=jsonschema.FormatChecker())


def test_each_kind_of_structured_output(demo: LLM) -> None:
    params = [
        demanding(choice=["yes", "no", "perhaps"]),
        demanding(regex="[a-f]{4}-[0-9]{2}"),
        demanding(grammar='root ::= "fox" (" and fox")?'),
        demanding(json={"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
        SamplingParams(seed=2, max_tokens=10),
    ]
    outputs = [output.outputs[0] for output in demo.generate([PROMPT] * len(params), params)]
    assert outputs[0].text in ("yes", "no", "perhaps")
    assert re.fullmatch("[a-f]{4}-[0-9]{2}", outputs[1].text)
    assert outputs[2].text in ("fox", "fox and fox")
    assert all(isinstance(item, bool) for item in json.loads(outputs[3].text))
    (alone,) = demo.generate(PROMPT, params[-1])
    assert outputs[4].token_ids == alone.outputs[0].token_ids


def test_parallel_samples_have_their_own_grammar_state(demo: LLM) -> None:
    params = SamplingParams(
        n=4, seed=5, max_tokens=40, logprobs=2, structured_outputs=StructuredOutputs(regex="[a-d]{5}( [a-d]{3})?")
    )
    (output,) = demo.generate(PROMPT, params)
    assert all(re.fullmatch("[a-d]{5}( [a-d]{3})?", one.text) for one in output.outputs)
    assert len({one.text for one in output.outputs}) > 1


def test_structured_output_survives_preemption(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(num_kv_blocks=12, block_size=4, max_model_len=40, max_num_seqs=4)
    wanted = StructuredOutputs(regex="([a-z]{3} ){6}end")
    params = [SamplingParams(seed=seed, max_tokens=32, structured_outputs=wanted) for seed in range(4)]
    outputs = llm.generate([PROMPT] * 4, params)
    assert any(one.outputs[0].finish_reason == "stop" for one in outputs)
    for output in outputs:
        completion = output.outputs[0]
        pattern = "([a-z]{3} ){6}end" if completion.finish_reason == "stop" else "[a-z ]+"
        assert re.fullmatch(pattern, completion.text)


def test_a_grammar_that_cannot_be_compiled_fails_its_request(demo: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be served"):
        demo.generate([PROMPT, PROMPT], [SamplingParams(max_tokens=3), demanding(json={"type": "stringg"})])
    with pytest.raises(InvalidArgumentError, match="ignore_eos cannot go with structured_outputs"):
        SamplingParams(ignore_eos=True, structured_outputs=StructuredOutputs(regex="a"))


def test_contradictory_constraints_end_the_request(demo: LLM) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=5, allowed_token_ids=[5], structured_outputs=StructuredOutputs(choice=["yes", "no"])
    )
    with pytest.raises(AetherMindError, match="cannot go on: its constraints exclude every token"):
        demo.generate(PROMPT, params)
