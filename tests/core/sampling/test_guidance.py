"""Grammars over the demo model's tokens: what they let through, and what they refuse."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.schemas import SCHEMAS

from aethermind import Runtime
from aethermind.errors import InvalidArgumentError
from aethermind.sampling import guidance
from aethermind.sampling.guidance import Grammars, TokenGuide
from aethermind.sampling.params import StructuredOutputs
from aethermind.sampling.structural_tags import StructuralTags
from aethermind.text import Tokenizer

VOCAB_SIZE = 2048
EOS = 2045


@pytest.fixture(scope="module")
def tokenizer(runtime: Runtime) -> Tokenizer:
    return Tokenizer.from_directory(Path(runtime.models.locate("demo")))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.as_json, VOCAB_SIZE, [EOS])


def allowed(guide: TokenGuide, output: Sequence[int]) -> set[int]:
    mask = np.full(VOCAB_SIZE // 32, -1, np.int32)
    assert guide.fill(output, mask) is None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_a_choice_allows_the_beginnings_of_its_strings(grammars: Grammars, tokenizer: Tokenizer) -> None:
    texts = ("yes", "no", 'a "quoted"\nline\\')
    guide = grammars.guide(StructuredOutputs(choice=texts))
    first = {tokenizer.token_text(token_id) for token_id in allowed(guide, [])}
    assert first
    assert all(any(text.startswith(beginning) for text in texts) for beginning in first)
    for text in texts:
        guide, output = grammars.guide(StructuredOutputs(choice=texts)), list[int]()
        for token_id in tokenizer.encode(text):
            assert token_id in allowed(guide, output)
            output.append(token_id)
        assert allowed(guide, output) == {EOS}


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize(
    "wanted",
    [
        {"choice": ("<think>no</think>",)},
        {"choice": ("<think>no</think>", "yes")},
        {"regex": "<think>[a-c]{2}</think>x"},
        {"regex": r"(<think>)(no|yes)<\/think>"},
        {"json": {"const": "<think>"}},
    ],
    ids=str,
)
def test_a_constraint_may_have_the_text_of_an_added_token(
    tokenizer: Tokenizer, wanted: dict[str, Any], is_special: bool
) -> None:
    """As ordinary tokens: Qwen3 has `<think>` among its added tokens. Their ids are never allowed."""
    added = json.loads(tokenizer.as_json())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": is_special}
    names = ("<think>", "</think>")
    added["added_tokens"] += [{"id": VOCAB_SIZE + n, "content": name, **flags} for n, name in enumerate(names)]
    guide = Grammars(lambda: json.dumps(added), VOCAB_SIZE + 32, [EOS]).guide(StructuredOutputs(**wanted))
    assert isinstance(guide, TokenGuide)
    output: list[int] = []
    mask = np.zeros((VOCAB_SIZE + 32) // 32, np.int32)
    while EOS not in output:
        output += guide.forced(output)
        if EOS in output:
            break
        assert guide.fill(output, mask) is None
        allowed_ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert allowed_ids.max() < VOCAB_SIZE
        output.append(int(allowed_ids[0]))
    text = tokenizer.decode(output)
    assert text == json.dumps("<think>") if "json" in wanted else re.fullmatch("<think>.*|yes", text)


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"regex": "[a-c]{2}[0-9]"}, "ab7", "abc"),
        ({"json": {"type": "integer", "minimum": 10, "maximum": 20}}, "15", "21"),
        ({"json": True}, '[1, {"a": null}]', "[1,,"),
        ({"json_object": True}, '{"a": [1, 2]}', "[1]"),
        ({"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]+/'}, "a42", "b"),
        ({"grammar": 'root ::= "ja" | "nein" [0-9]'}, "nein5", "nein!"),
    ],
    ids=str,
)
def test_a_grammar_accepts_the_texts_that_it_describes(
    grammars: Grammars, tokenizer: Tokenizer, wanted: dict[str, Any], good: str, bad: str
) -> None:
    guide, output = grammars.guide(StructuredOutputs(**wanted)), list[int]()
    for token_id in tokenizer.encode(good):
        assert token_id in allowed(guide, output)
        output.append(token_id)
    assert EOS in allowed(guide, output)
    guide = grammars.guide(StructuredOutputs(**wanted))
    failure = guide.fill(tokenizer.encode(bad), np.zeros(VOCAB_SIZE // 32, np.int32))
    assert failure


def test_guides_of_one_grammar_are_independent(grammars: Grammars, tokenizer: Tokenizer) -> None:
    wanted = StructuredOutputs(regex="[ab]{6}")
    one, (a, b) = grammars.guide(wanted), (tokenizer.encode(text)[0] for text in "ab")
    beginning = allowed(one, [])
    two = one.fork()
    assert allowed(one, [a, b, a, b, a, b]) == {EOS}
    assert allowed(two, []) == allowed(grammars.guide(wanted), []) == beginning
    assert allowed(one.fork(), [a, b, a, b, a, b]) == {EOS}


@pytest.mark.parametrize("schema", [SCHEMAS[index] for index in (11, 12, 13, 19, 28, 36, 38, 40, 43)], ids=str)
def test_forced_tokens_are_those_that_masks_allow_alone(grammars: Grammars, schema: dict[str, Any]) -> None:
    wanted, num_forced = StructuredOutputs(json=schema), 0
    for seed in range(3):
        random, guide, alone, output = Random(seed), grammars.guide(wanted), grammars.guide(wanted), list[int]()
        while output[-1:] != [EOS]:
            forced = guide.forced(output)
            for token_id in forced:
                assert allowed(alone, output) == {token_id}
                output.append(token_id)
            num_forced += len(forced)
            if not forced:
                choice = allowed(guide, output)
                assert choice == allowed(alone, output)
                assert len(choice) > 1
                output.append(random.choice(sorted(choice)))
    assert num_forced > 0


def test_an_end_token_is_forced_if_there_is_only_one(tokenizer: Tokenizer) -> None:
    for ends in ([EOS], [EOS, EOS - 1]):
        guide = Grammars(tokenizer.as_json, VOCAB_SIZE, ends).guide(StructuredOutputs(choice=["no"]))
        output = guide.forced([])
        assert tokenizer.decode([token for token in output if token not in ends]) == "no"
        assert (output[-1] == EOS) == (len(ends) == 1)
        assert len(ends) == 1 or allowed(guide, output) == set(ends)


def test_a_failed_guide_forces_nothing(grammars: Grammars, tokenizer: Tokenizer) -> None:
    guide = grammars.guide(StructuredOutputs(choice=["no"]))
    assert guide.forced(tokenizer.encode("yes")) == []


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"json": {"type": "stringg"}}, "Invalid type: stringg"),
        ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json": {"$ref": "http://example.org/schema"}}, "Default retriever does not fetch"),
        ({"json": {"$ref": "#/$defs/missing"}}, "does not exist"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        (
            {"json": {"oneOf": [{"maxLength": 3}, {"minLength": 2}], "type": "string"}},
            "a oneOf may overlap; write anyOf",
        ),
        ({"json": {"$ref": "#"}}, "no text satisfies it"),
        (
            {"json": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}},
            "what it demands before there is a choice has no end",
        ),
        (
            {
                "json": {
                    "type": "object",
                    "properties": {"x": {"$ref": "#/$defs/a"}},
                    "required": ["x"],
                    "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
                }
            },
            "no text satisfies it",
        ),
        ({"json": False}, "describes nothing"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-ahead"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "start: /a*/ start"}, "the rule start never ends"),
        ({"grammar": 'root ::= "" root'}, "never ends"),
        ({"grammar": 'root ::= "a'}, "."),
    ],
    ids=str,
)
def test_an_unsupported_structured_output_is_refused_at_once(
    grammars: Grammars, wanted: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"cannot be served: .*{reason}") as caught:
        grammars.guide(StructuredOutputs(**wanted))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("Change or simplify what is asked for.")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "-8999999999999999999", str(2**63)),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**64}, "9007199254740993", str(2**64)),
        (
            {"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740999},
            "9007199254740994",
            "9007199254741000",
        ),
        ({"type": "number", "minimum": -3.4028235e38, "maximum": 3.4028235e38}, "-12.5", "x"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.7976931348623157e308}, "12.5", "-1"),
    ],
    ids=str,
)
def test_bounds_of_64_bits_and_floats(
    grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], good: str, bad: str
) -> None:
    for text, is_good in ((good, True), (bad, False)):
        guide, output = grammars.guide(StructuredOutputs(json=schema)), list[int]()
        fits = True
        for token_id in [*tokenizer.encode(text), EOS]:
            if not (fits := token_id in allowed(guide, output)):
                break
            output.append(token_id)
        assert fits == is_good


def test_a_union_with_a_defaulted_discriminator_is_served(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """As Pydantic writes those that have a discriminator."""
    union = {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {"propertyName": "kind"}}
    cat, dog = ({"type": "object", "properties": {"kind": {"const": kind, "default": kind}}} for kind in ("cat", "dog"))
    dog["properties"]["friend"] = union
    guide, output = grammars.guide(StructuredOutputs(json={**union, "$defs": {"Cat": cat, "Dog": dog}})), list[int]()
    text = '{"kind": "dog", "friend": {"kind": "cat"}}'
    for token_id in [*tokenizer.encode(text), EOS]:
        assert token_id in allowed(guide, output)
        output.append(token_id)


def test_keywords_without_effect_are_accepted(grammars: Grammars) -> None:
    record = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}
    fields = {"file": {"type": "string", "format": "path"}, "list": {"type": "array", "uniqueItems": False}}
    grammars.guide(StructuredOutputs(json={"type": "object", "properties": {"record": record, **fields}}))


def test_a_recursive_schema_is_served(grammars: Grammars, tokenizer: Tokenizer) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    guide, output = grammars.guide(StructuredOutputs(json=node)), list[int]()
    for token_id in tokenizer.encode('{"next": {"next": {}}}'):
        assert token_id in allowed(guide, output)
        output.append(token_id)
    assert EOS in allowed(guide, output)


def tags(*contents: Any, triggers: Sequence[str] = ("<a>",)) -> dict[str, Any]:
    """Structural tags for one trigger, or for each of several."""
    content = {"type": "sequence", "elements": contents}
    begun = [{"begin": trigger, "content": content, "end": ""} for trigger in triggers]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": list(triggers), "tags": begun}}


_RULES = [
    {"type": "regex", "pattern": "a\\"},
    {"type": "regex", "pattern": ' rule_x\nrule_x: "b"\nrule_y: "'},
    {"type": "const_string", "value": "//"},
]
"""If the first expression does not end, the second one is read as rules."""


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ('{"format": {"triggers": ["\\ud800"]}}', "JSON object"),
        (tags(*_RULES), "ends with a backslash"),
        (tags({"type": "regex", "pattern": r"a\\"}, triggers=[f"<{number}>" for number in range(65)]), "65 triggers"),
    ],
    ids=["surrogate", "rules", "triggers"],
)
def test_structural_tags_that_cannot_be_served_are_refused(tokenizer: Tokenizer, wanted: Any, words: str) -> None:
    def token_bytes(token_id: int) -> bytes:
        return tokenizer.token_bytes(token_id) or b""

    own = Grammars(tokenizer.as_json, VOCAB_SIZE, [EOS], token_bytes=token_bytes, token_to_id=tokenizer.token_to_id)
    assert own.guide(StructuredOutputs(structural_tag=tags({"type": "regex", "pattern": r"a/\\"})))
    with pytest.raises(InvalidArgumentError, match=words):
        own.guide(StructuredOutputs(structural_tag=wanted))


def test_a_request_waits_for_the_grammars_that_are_compiled_before_its_own(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the step in which its trigger occurs would wait for all of them, and so would the whole batch."""
    may_compile = threading.Event()

    def lenient(trigger: str) -> StructuredOutputs:
        wanted = tags({"type": "any_text"}, triggers=[trigger])
        wanted["format"]["is_lenient"] = True
        return StructuredOutputs(structural_tag=wanted)

    own = Grammars(
        tokenizer.as_json,
        VOCAB_SIZE,
        [EOS],
        token_bytes=lambda token_id: tokenizer.token_bytes(token_id) or b"",
        token_to_id=tokenizer.token_to_id,
    )
    compile = own._lenient_matchers

    def compile_late(wanted: StructuralTags) -> dict[str, Any]:
        assert may_compile.wait(60)
        return compile(wanted)

    monkeypatch.setattr(own, "_lenient_matchers", compile_late)
    first, second, third = (own.prepare(lenient(trigger)) for trigger in ("<a>", "<b>", "<c>"))
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    assert second.cancel()
    may_compile.set()
    assert third.result(60).is_active(tokenizer.encode("so <c>"))
    assert own.prepare(lenient("<d>")).done()


def test_grammars_are_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guidance._LIMITS, "max_grammar_size", 50)
    grammars = Grammars(tokenizer.as_json, VOCAB_SIZE, [EOS])
    schema = {"properties": {f"p{index}": {"type": "integer"} for index in range(50)}}
    with pytest.raises(InvalidArgumentError, match="cannot be served"):
        grammars.guide(StructuredOutputs(json=schema))


def test_without_the_library_the_error_names_the_package_to_install(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidArgumentError, match=r"pip install '.*aethermind-core\[structured\]'"):
        Grammars(tokenizer.as_json, VOCAB_SIZE, [EOS]).guide(StructuredOutputs(regex="a"))


def test_a_model_without_an_end_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match="eos_token_id"):
        Grammars(tokenizer.as_json, VOCAB_SIZE, []).guide(StructuredOutputs(regex="a"))
