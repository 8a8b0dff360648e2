"""Drafts do not change answers, masked phrases are not generated, and the command line lists the book."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.speculative import Request
from aethermind.errors import InvalidArgumentError
from aethermind_phrases.proposer import PhraseProposer

RUNTIME = Runtime.boot()
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, seed=4, max_tokens=40, ignore_eos=True)
PROMPTS = ["Once upon a time", "The little fox"]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_drafts_do_not_change_answers(params: SamplingParams) -> None:
    texts = []
    for method in (None, "phrases"):
        with LLM("demo", device="cpu", dtype="float32", speculative_method=method, runtime=RUNTIME) as llm:
            outputs = llm.generate(PROMPTS, params)
            texts.append([output.outputs[0].text for output in outputs])
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", device="cpu", dtype="float32", runtime=RUNTIME)


def test_the_rest_of_a_phrase_is_drafted(llm: LLM) -> None:
    proposer = PhraseProposer(llm.engine.compiled)
    encode, decode = llm.tokenizer.encode, llm.tokenizer.decode
    texts = ["She lived in a", "They lived happily", "The end."]
    params = SamplingParams()
    requests = [Request(text, encode(text), params, 0.0, max_model_len=64) for text in texts]
    drafts = proposer.propose(requests, [8, 2, 8])
    assert [decode(draft) for draft in drafts] == [" small house", decode(encode(" ever after")[:2]), ""]


def answer(llm: LLM, **options: object) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, **options)
    return llm.generate(PROMPTS[0], params)[0].outputs[0].text


def test_phrases_of_the_book_are_not_generated(llm: LLM) -> None:
    assert "there was a lively girl named" in answer(llm)
    assert "there was a lively girl named" not in answer(llm, logits_processors=["avoid-phrases"])


def test_a_request_may_add_phrases(llm: LLM) -> None:
    (said,) = [" ".join(answer(llm, logits_processors=["avoid-phrases"]).split()[3:6])]
    more = {"phrases": [said]}
    assert said not in answer(llm, logits_processors=["avoid-phrases"], extra_args=more)
    with pytest.raises(InvalidArgumentError, match="list of texts"):
        answer(llm, logits_processors=["avoid-phrases"], extra_args={"phrases": "x"})


def aethermind(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aethermind", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line_has_a_command_and_a_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("# mine\nby and by\nin the end\n")
    monkeypatch.setenv("AETHERMIND_PHRASES", str(tmp_path / "book.txt"))
    assert aethermind("phrases").stdout == "by and by\nin the end\n"
    assert f"2 phrases in {tmp_path}/book.txt" in " ".join(aethermind("doctor").stdout.split())


def test_a_missing_book_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AETHERMIND_PHRASES", str(tmp_path / "none.txt"))
    failed = aethermind("phrases")
    assert failed.returncode == 2
    assert "Set AETHERMIND_PHRASES to a text file" in " ".join(failed.stderr.split())
