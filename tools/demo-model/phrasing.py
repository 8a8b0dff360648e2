"""How people ask: a topic's phrases put into sentences, with the politeness, haste and slips of real typing."""

from __future__ import annotations

import re
from random import Random

from topic import Topic, choose, fill

_ABOUT = (
    "What is {x}?",
    "What is {x}?",
    "What's {x}?",
    "What are {x}?",
    "Tell me about {x}.",
    "Tell me [more|something|everything|a bit] about {x}.",
    "Explain {x}.",
    "[Can|Could] you explain {x}[| to me]?",
    "Please explain {x}[| to me].",
    "Explain {x} [to me|briefly|shortly|in one sentence|simply].",
    "Describe {x}.",
    "{x}?",
    "{x}",
    "What about {x}?",
    "And {x}?",
    "What do you know about {x}?",
    "How does {x} work?",
    "How do {x} work?",
    "What does {x} mean?",
    "What is {x} for?",
    "What is meant by {x}?",
    "I have a question about {x}.",
    "I want to [know|learn|understand|hear] [more|something|] about {x}.",
    "I do not understand {x}.",
    "Do you know [anything|something|] about {x}?",
    "[Info|Information|Details|Help] [on|about] {x}[|, please].",
    "Where can I [find|learn about] {x}?",
    "[Say|Give me] something about {x}.",
    "Define {x}.",
    "[Anything|Something] about {x}?",
    "Why {x}?",
    "What can you [tell|say] [me|] about {x}?",
    "Can you tell me [more|] about {x}?",
)
_COMMANDS = (
    "What does {x} do?",
    "What does {x} do?",
    "What does the {x} {command} do?",
    "What does [the|] {x} [{command}|] [show|print|tell me|give me|mean]?",
    "What is {x} [good|] for?",
    "What is the {x} {command}?",
    "What is the {x} {command} [good|] for?",
    "When [do|would|should] {person} use {x}?",
    "[How|Why] do I use {x}?",
    "How [do|can] I [run|use|call] {x}?",
    "What happens [if|when] I [run|type|use|call] {x}?",
    "Explain [the|] {x} [{command}|].",
    "[Tell me|Explain] what {x} does.",
    "Tell me about [the|] {x} [{command}|].",
    "[Purpose|Meaning|Use] of {x}?",
    "{x}?",
    "{x} {command}?",
    "What do I [get|see|learn] [from|with|by] {x}?",
    "What can I do with {x}?",
    "What [will|does] {x} [tell|show|give] me?",
    "I ran {x}, what [is it|does it do|does it show]?",
)
_DEEDS = (
    "How do I {x}?",
    "How do I {x}?",
    "How can I {x}?",
    "How can {person} {x}?",
    "How do {person} {x}?",
    "How to {x}?",
    "How [would|should|could|might] I {x}?",
    "I [want|need|wish|would like|have|'d like] to {x}.",
    "I'd like to {x}[|, please|, how].",
    "[Can|May|Could] I {x}?",
    "Can {am} {x}?",
    "Is it possible to {x}?",
    "Is there [a|any] way to {x}?",
    "Is there a {command} to {x}?",
    "What do I [type|do|run|enter|write|need|use] to {x}?",
    "[Which|What] {command} [do|should|can|must] I [use|run|type|need] to {x}?",
    "[Which|What] {command} lets me {x}?",
    "[Which|What] [is|'s] the {command} to {x}?",
    "[With|By] what command can I {x}?",
    "Show me how to {x}.",
    "Tell me how to {x}.",
    "Explain how to {x}.",
    "Help me [to|] {x}.",
    "What is the [best|easiest|right|quickest] way to {x}?",
    "{x}",
    "{x}, how?",
    "{x}, please.",
    "What [should|must] I do to {x}?",
    "How does one {x}?",
    "How is it possible to {x}?",
    "Does {am} let me {x}?",
    "Do you know how to {x}?",
    "I don't know how to {x}.",
    "[What if|Suppose] I want to {x}?",
    "I am trying to {x}.",
    "Let me {x}.",
    "Could you [tell|show] me how [to|I can] {x}?",
    "{command} to {x}?",
    "[Any|Is there a] {flag} to {x}?",
    "[Which|What] {flag} do I need to {x}?",
    "Am I able to {x}?",
    "Where [do|can] I {x}?",
)
_OPENERS = (
    "[Hi|Hello|Hey][,|!|.]",
    "Please,",
    "[Ok|Okay|So|Well|Now|And|Also|Then|But|Alright],",
    "[Quick|One|Another|A] question:",
    "I'm new here.",
    "[I have|Here is] a question[:|.]",
    "[My friend|My boss|My colleague|Somebody] [asks|wants to know]:",
    "[I am|I'm] a beginner.",
    "I just [installed|found|started with] {AM}.",
    "[One more thing|Another thing|Just wondering|Tell me please|Good question|Great|Thanks|Cool|Listen|Look][:|,|.]",
    "Excuse me,",
    "[Sorry|Hm|Hmm|Um],",
    "[Can|Could] you [please|] tell me[:|,|]",
    "Tell me[:|,]",
    "I wonder[:|,]",
    "I would like to know:",
    "Do you know:",
    "[And|So|But]",
    "Say,",
    "By the way,",
    "Next question:",
)
_CLOSERS = (
    "please",
    "exactly",
    "in AetherMind",
    "with AetherMind",
    "in aethermind",
    "here",
    "again",
    "then",
    "now",
    "actually",
    "with it",
    "in short",
    "in general",
    "really",
    "on my computer",
    "myself",
    "quickly",
)


_KINDS = {"ask": (("{x}",), 4.0), "deed": (_DEEDS, 4.0), "thing": (_ABOUT, 2.5), "command": (_COMMANDS, 1.5)}


def question(rng: Random, topic: Topic) -> str:
    """One way of asking about `topic`."""
    kinds = [kind for kind in _KINDS if topic.phrases[kind]]
    kind = rng.choices(kinds, [_KINDS[kind][1] for kind in kinds])[0]
    phrase = choose(rng, topic.phrases[kind])
    text = fill(rng, rng.choice(_KINDS[kind][0]).replace("{x}", "\0")).replace("\0", phrase)
    return typed(rng, text)


def typed(rng: Random, text: str) -> str:
    """`text` as somebody may type it: with an opener, in lower case, without its mark, with a slip."""
    text = text[0].upper() + text[1:]
    mark = text[-1] if text[-1] in ".?!" else ""
    body = text[: len(text) - len(mark)]
    if rng.random() < 0.12 and " " in body:
        body += (", " if rng.random() < 0.3 else " ") + rng.choice(_CLOSERS)
    if rng.random() < 0.15:
        opener = fill(rng, rng.choice(_OPENERS))
        body = f"{opener} {body if opener[-1] in '.!' else body[0].lower() + body[1:]}"
    if mark and rng.random() < 0.35:
        mark = ""
    elif rng.random() < 0.05:
        mark = rng.choice(("?", "!", "??", " ?", "..."))
    if rng.random() < 0.15:
        body = _shortened(rng, body)
    if rng.random() < 0.10:
        body = _slip(rng, body)
    if rng.random() < 0.4:
        body = body.lower()
    elif rng.random() < 0.02:
        body = body.upper()
    return body + mark


_SMALL = re.compile(r"(the|a|an|do|does|is|are|i|it|to|of|my|for|in|on|me|can|with|you)", re.IGNORECASE)


def _shortened(rng: Random, text: str) -> str:
    """Without some of its small words."""
    words = text.split(" ")
    kept = [word for word in words if not _SMALL.fullmatch(word) or rng.random() < 0.5]
    return " ".join(kept) if len(kept) > 1 else text


def _slip(rng: Random, text: str) -> str:
    """With one letter of a longer word missing, doubled or swapped."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not long:
        return text
    index = rng.choice(long)
    word = words[index]
    at = rng.randrange(1, len(word) - 1)
    words[index] = rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        )
    )
    return " ".join(words)
