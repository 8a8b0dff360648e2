"""Measure a demo model: held-out perplexity, and how sane its sampled and greedy stories are.

python evaluate.py DIR --samples 200 --show 20
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from dialogues import dialogues
from rows import HELD_OUT_SEEDS, held_out_stories
from stories import stories, story
from tokenizers import Tokenizer
from tokens import END_OF_TEXT
from torch.nn.functional import cross_entropy
from transformers import Qwen2ForCausalLM

PROMPTS = (
    "Once upon a time",
    "Once upon a time, in a quiet forest,",
    "Once upon a time there was a girl named",
    "There was once a",
    "A little fox named",
    "By the sea lived",
    "A long time ago,",
    "The young mouse",
    "This is the story of",
    "In a small village lived",
)
_INTRODUCED = (r"(?:named|(?<!\" )called|friend|story of) {0}\b", r"\b{0} (?:was an?|the) [a-z]+")


def perplexity(model: Qwen2ForCausalLM, tokenizer: Tokenizer) -> float:
    """exp of the mean loss per token (the end token included) over the held-out stories, each by itself."""
    total, count = 0.0, 0
    for text in (story(seed) for seed in HELD_OUT_SEEDS):
        ids = torch.tensor([tokenizer.encode(text + END_OF_TEXT).ids])
        with torch.inference_mode():
            logits = model(ids).logits[0, :-1].float()
        total += cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return math.exp(total / count)


@torch.inference_mode()
def generate(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, prompt: str, copies: int, temperature: float, limit: int
) -> list[tuple[str, bool]]:
    """`copies` continuations of `prompt` as (whole text, ended by itself); temperature 0 is greedy."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = torch.tensor([tokenizer.encode(prompt).ids] * copies)
    ended = torch.zeros(copies, dtype=torch.bool)
    step, past = ids, None
    for _ in range(limit):
        output = model(step, past_key_values=past, use_cache=True)
        logits, past = output.logits[:, -1].float(), output.past_key_values
        step = (
            torch.multinomial((logits / temperature).softmax(-1), 1) if temperature else logits.argmax(-1, keepdim=True)
        )
        step[ended] = end
        ids = torch.cat([ids, step], 1)
        ended |= step[:, 0] == end
        if ended.all():
            break
    return [(tokenizer.decode(row.tolist()), bool(done)) for row, done in zip(ids, ended, strict=True)]


def loops(text: str, tokenizer: Tokenizer) -> bool:
    """True when some run of 8 tokens occurs three times within the first 200."""
    ids = tokenizer.encode(text).ids[:200]
    runs = Counter(tuple(ids[i : i + 8]) for i in range(len(ids) - 7))
    return any(times >= 3 for times in runs.values())


@cache
def plain_words() -> tuple[frozenset[str], frozenset[str]]:
    """From the held-out stories: words also written small, and capitalised words that never name anybody."""
    text = "\n".join(held_out_stories())
    names = {name for pattern in _INTRODUCED for name in re.findall(pattern.format("([A-Z][a-z]+)"), text)}
    return frozenset(re.findall(r"\b[a-z]+\b", text)), frozenset(re.findall(r"\b[A-Z][a-z]*\b", text)) - names


def stray_names(text: str) -> set[str]:
    """Names that are used without ever having been introduced ("a fox named Fern", "Fern was a fox")."""
    small, titles = plain_words()
    inside = set(re.findall(r"(?<=[a-z,] )([A-Z][a-z]+)", text))
    starting = {word for word in re.findall(r"\b[A-Z][a-z]+\b", text) if word.lower() not in small}
    called = {word.capitalize() for word in re.findall(r"\bthe ([a-z]+)", text)}
    return {
        name
        for name in (inside | starting) - titles - called
        if not any(re.search(pattern.format(name), text) for pattern in _INTRODUCED)
    }


def shares_a_name(text: str) -> bool:
    """True when two characters are introduced with one name."""
    names = re.findall(r"(?:named|(?<!\" )called|story of) ([A-Z][a-z]+)", text)
    return len(names) != len(set(names))


def report(name: str, made: list[tuple[str, bool]], tokenizer: Tokenizer, known: set[str]) -> dict[str, float]:
    """The sanity figures of a set of stories, printed and returned as fractions."""
    texts = [text for text, _ in made]
    figures = {
        "ends_within_limit": sum(done for _, done in made) / len(made),
        "no_loop": sum(not loops(text, tokenizer) for text in texts) / len(made),
        "names_consistent": sum(not stray_names(text) for text in texts) / len(made),
        "one_bearer_per_name": sum(not shares_a_name(text) for text in texts) / len(made),
        "distinct": len(set(texts)) / len(made),
        "memorised": sum(text in known for text in texts) / len(made),
    }
    lengths = sorted(len(tokenizer.encode(text).ids) for text in texts)
    print(
        f"{name}: {len(made)} stories, {lengths[0]}–{lengths[-1]} tokens,",
        ", ".join(f"{key} {value:.1%}" for key, value in figures.items()),
    )
    return figures


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description="Measure a demo model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--show", type=int, default=20, help="how many stories to print")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--limit", type=int, default=300, help="tokens after which a story counts as endless")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    model = Qwen2ForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    runs = json.loads((options.model / "training.json").read_text(encoding="utf-8"))
    held_out = held_out_stories()
    known = {text for run in runs for text in stories(run["first_story"], run["stories"], run["invented_names"])}
    talks = (dialogues(run["first_dialogue"], run["dialogues"]) for run in runs if "dialogues" in run)
    told = {content for talk in talks for messages in talk for role, content in messages if role == "assistant"}
    print(
        f"{len(known)} distinct training stories of {sum(run['stories'] for run in runs)}; "
        f"{len(known & held_out)} equal a held-out story (those are left out of training)"
    )
    print(f"held-out perplexity {perplexity(model, tokenizer):.3f} over {len(held_out)} stories")
    greedy = [generate(model, tokenizer, prompt, 1, 0.0, options.limit)[0] for prompt in PROMPTS]
    per_prompt = -(-options.samples // len(PROMPTS))
    sampled = [
        made
        for prompt in PROMPTS
        for made in generate(model, tokenizer, prompt, per_prompt, options.temperature, options.limit)
    ]
    known |= told
    real = [(text, True) for text in sorted(held_out)[: options.samples]]
    report("held-out (the generator's own)", real, tokenizer, known)
    report("greedy", greedy, tokenizer, known)
    report(f"sampled at {options.temperature}", sampled, tokenizer, known)
    step = max(1, len(sampled) // max(1, options.show))
    for kind, made in (("greedy", greedy), ("sampled", sampled[::step][: options.show])):
        for text, done in made:
            print(
                f"\n[{kind}{'' if done else ', did not end'}"
                f"{'; stray ' + str(stray_names(text)) if stray_names(text) else ''}] {text}"
            )


if __name__ == "__main__":
    main()
