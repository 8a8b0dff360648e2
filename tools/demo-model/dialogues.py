"""The dialogue generator: short talks about AetherMind, requests for stories, and what the model says to anything else.

python dialogues.py --seed 7 --count 5
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Iterator
from random import Random

from phrasing import question, typed
from stories import story
from topic import Topic, choose, read_topics

TOPICS: tuple[Topic, ...] = tuple(
    topic for name in ("itself", "commands", "engine", "inside", "beyond") for topic in read_topics(name)
)
"""Everything that can be asked about, stories apart."""

STORY_SHARE = 0.08
"""The share of questions that ask for a story."""

_WEIGHTS = [topic.weight for topic in TOPICS]
_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are AetherMind's demo model.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "You are a helpful AI assistant.",
    "Be brief and polite.",
    "You answer questions about AetherMind.",
    "You are a storyteller.",
    "You are a small language model.",
)
_ASK_STORY = (
    "[Tell|Tell|Tell|Write|Read|Give|Make|Show] me a [|short |little |nice |small |new ]story{about}.",
    "[Tell|Tell|Tell|Write|Read|Give|Make|Show] me a [good |bedtime |funny |sweet |lovely ]story{about}.",
    "[Can|Could|Would|Will] you [please |][tell|write] [me |us ||][a|another|one] [|short |little ]story{about}?",
    "[Can|Could|Would|Will] you [please |][read|make up] [me |us ||][a|another|one] [|short |little ]story{about}?",
    "[Can|Could|Would|Will] you [please |][tell|write] [me |us ||][a|another|one] [nice |bedtime |small ]story{about}?",
    "[Can|Could|Would|Will] you [please |][read|make up] [me |us ||][a|another|one] [nice |bedtime ]story{about}?",
    "[Can|Could|Would|Will] you [please |][read|make up] [me |us ||][a|another|one] small story{about}?",
    "I [want|would like|'d like|would love] [to hear |to read |]a [|short |little |nice ]story{about}.",
    "[Please |][tell|write|invent|make up] a [|short |little |nice |bedtime |tiny ]story{about}.",
    "[Please |][create|generate|compose] a [|short |little |nice |bedtime |tiny ]story{about}.",
    "[A|One|Another] story{about}[, please|, please!|!|].",
    "[Story|story time|Story please|story, please|bedtime story]{about}",
    "Do you know [a|any|a good|some] [story|stories|tale]{about}?",
    "Tell me [one of your|some|another of your] stories.",
    "Tell us a [tale|story|fairy tale|short tale]{about}.",
    "[Another one|One more|One more story|Another story|Once more|A new story][|, please].",
    "Let me hear a story{about}.",
    "[My child|My daughter|My son|The children|The kids] [wants|want] a story{about}.",
    "How about a story{about}?",
    "I am [bored|tired|going to bed], tell me a story{about}.",
    "[Invent|Make up|Think of|Imagine] a [|new |short |nice ]story{about}[| for me| for us].",
    "[Entertain|Surprise|Amuse] me[| with a story].",
    "[Let's|Let us] have a [|short |little ]story{about}.",
    "[I need|Give us|Let me have] a [|short |good |bedtime |good-night |quick ][story|tale|fairy tale]{about}.",
    "[Can|Could|May] [I|we] [hear|have|get] a [|short |little ][story|tale]{about}?",
    "Once upon a time, please.",
    "[Start|Begin] a [story|tale]{about}.",
)
_PLURALS = {"fox": "foxes", "mouse": "mice", "deer": "deer"}
_HERO = re.compile(r"\b(boy|girl|[a-z]+) (?:named|called) ([A-Z][a-z]+)")

Message = tuple[str, str]


def story_request(rng: Random) -> tuple[str, str]:
    """A request and the story that answers it; most requests name somebody or a place of it."""
    text = story(rng.randrange(10**9, 10**10))
    about = ""
    hero = _HERO.search(text)
    if hero and rng.random() < 0.65:
        kind, name = hero[1], hero[2]
        article = "an" if kind[0] in "aeio" else "a"
        about = rng.choice(
            (
                f" about {article} {kind}",
                f" about {article} {kind}",
                f" about {article} {kind} named {name}",
                f" with {article} {kind}",
                f" about {_PLURALS.get(kind, kind + 's')}",
                f" [about|with|of] [a|one] [brave|little|small|clever|kind|young|funny|sad|happy|lonely|old] {kind}",
                f" in which {article} {kind} [lives|plays|is happy|finds a friend|appears]",
                f" about {name} the {kind}",
            )
        )
    asked = choose(rng, [asked.replace("{about}", about) for asked in _ASK_STORY])
    return typed(rng, asked), text


def dialogue(seed: int, excluded: Container[str] = ()) -> list[Message]:
    """The (role, content) messages of this seed; no question whose text is in `excluded` is asked."""
    rng = Random(seed)
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append(("system", rng.choice(_SYSTEM)))
    for _ in range(rng.choices((1, 2, 3, 4), (0.6, 0.2, 0.12, 0.08))[0]):
        asked, answer = _turn(rng)
        while asked.lower() in excluded:
            asked, answer = _turn(rng)
        messages += [("user", asked), ("assistant", answer)]
    return messages


def _turn(rng: Random) -> tuple[str, str]:
    if rng.random() < STORY_SHARE:
        return story_request(rng)
    topic = rng.choices(TOPICS, _WEIGHTS)[0]
    return question(rng, topic), rng.choice(topic.answers)


def dialogues(first_seed: int, count: int, excluded: Container[str] = ()) -> Iterator[list[Message]]:
    """`count` dialogues of consecutive seeds."""
    for seed in range(first_seed, first_seed + count):
        yield dialogue(seed, excluded)


def main() -> None:
    """Print dialogues."""
    parser = argparse.ArgumentParser(description="Print generated dialogues.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    for messages in dialogues(options.seed, options.count):
        print("\n".join(f"{role}: {content}" for role, content in messages) + "\n")


if __name__ == "__main__":
    main()
