"""Ask a demo model questions, through the chat template and AetherMind itself, and score its answers.

    python ask.py QUESTIONS.json --model DIR
    python ask.py held_out_questions.json --quiet

A question file is a JSON list of {"topic", "question", "any_of": [[keyword, ...], ...], "none_of": [keyword, ...]}. An
answer is right if it holds all keywords of one of the lists and none of those in `none_of`, in upper or lower case.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aethermind import LLM, SamplingParams
from aethermind.text import render_chat

MAX_TOKENS = 320
"""Enough for a story, the longest answer there is."""

Entry = Mapping[str, Any]


def is_right(answer: str, entry: Entry) -> bool:
    """True if `answer` holds what the entry of a question file asks for."""
    said = answer.lower()
    return any(all(word.lower() in said for word in words) for words in entry["any_of"]) and not any(
        word.lower() in said for word in entry.get("none_of", ())
    )


def answers(llm: LLM, questions: Sequence[str], temperature: float = 0.0) -> list[str]:
    """The model's answers, each question asked in a chat of its own, all in one batch."""
    template = llm.tokenizer.chat_template
    assert template is not None
    prompts = [render_chat(template, [{"role": "user", "content": question}]) for question in questions]
    outputs = llm.generate(prompts, SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS, seed=0))
    return [output.outputs[0].text for output in outputs]


def main() -> int:
    """Read the options, ask, print a table by topic; returns 1 below the wanted share."""
    parser = argparse.ArgumentParser(description="Ask a demo model questions and score its answers.")
    parser.add_argument("questions", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--at-least", type=float, default=0.9, help="the share of right answers to reach")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--quiet", action="store_true", help="the scores only, no question and no answer")
    options = parser.parse_args()
    entries = json.loads(options.questions.read_text(encoding="utf-8"))
    with LLM(options.model, device="cpu") as llm:
        given = answers(llm, [entry["question"] for entry in entries], options.temperature)
    results: dict[str, list[bool]] = {}
    for entry, answer in zip(entries, given, strict=True):
        right = is_right(answer, entry)
        results.setdefault(entry["topic"], []).append(right)
        if not right and not options.quiet:
            print(f"[{entry['topic']}] {entry['question']}\n    {answer}")
    for topic, right in results.items():
        print(f"{topic:20} {sum(right):3} of {len(right)}")
    total = sum(sum(right) for right in results.values())
    print(f"{'all':20} {total:3} of {len(entries)}  {total / len(entries):.1%}")
    return int(total < options.at_least * len(entries))


if __name__ == "__main__":
    sys.exit(main())
