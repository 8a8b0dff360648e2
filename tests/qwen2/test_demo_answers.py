"""What the demo model says about AetherMind: right answers to questions no training run has seen."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import pytest

from aethermind import LLM
from aethermind.text import render_chat

TRAINING = Path(__file__).parents[2] / "tools" / "demo-model"
sys.path.append(str(TRAINING))

from ask import answers, is_right  # noqa: E402
from dialogues import TOPICS, dialogue  # noqa: E402
from phrasing import question  # noqa: E402
from rows import rendered  # noqa: E402

QUESTIONS = json.loads((TRAINING / "held_out_questions.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def demo() -> LLM:
    return LLM("demo", device="cpu")


def test_nine_of_ten_held_out_questions_are_answered_right(demo: LLM) -> None:
    given = answers(demo, [entry["question"] for entry in QUESTIONS])
    right = sum(is_right(answer, entry) for answer, entry in zip(given, QUESTIONS, strict=True))
    share = right / len(QUESTIONS)
    assert share >= 0.9


def test_a_requested_story_is_about_the_requested_character(demo: LLM) -> None:
    kinds = ("fox", "rabbit", "owl", "girl")
    texts = answers(demo, [f"Tell me a story about a {kind}." for kind in kinds])
    assert all(kind in text for kind, text in zip(kinds, texts, strict=True))
    assert all(len(text.split()) > 50 and text[-1] in '.!"' for text in texts)


def test_training_rows_render_dialogues_by_the_chat_template(demo: LLM) -> None:
    assert demo.tokenizer.chat_template is not None
    for seed in range(50):
        messages = dialogue(seed)
        pieces = [text for text, _ in rendered(messages)]
        wanted = render_chat(
            demo.tokenizer.chat_template,
            [{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=False,
        )
        assert "".join(pieces) == wanted
        assert [token for text in pieces for token in demo.tokenizer.encode(text)] == demo.tokenizer.encode(wanted)


def test_no_dialogue_asks_an_excluded_question() -> None:
    asked = {content.lower() for seed in range(200) for role, content in dialogue(seed) if role == "user"}
    again = {content.lower() for seed in range(200) for role, content in dialogue(seed, asked) if role == "user"}
    assert not asked & again


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topic_can_be_asked_about_in_many_ways(topic) -> None:
    rng = Random(0)
    texts = {question(rng, topic) for _ in range(300)}
    assert len(texts) >= 80
    assert not any(sign in text for text in texts for sign in "{}|")
    assert not any("|" in answer or not answer for answer in topic.answers)
