"""Plots in which something is lost: a toy that got stuck, a young animal far from home."""

from __future__ import annotations

from random import Random

from cast import Cast
from frame import bind_helper, close_story, open_story
from tale import Tale
from world import KINDS, Place

_COLOURS = ("red", "blue", "yellow", "green", "striped", "white", "purple", "orange")
_LIGHT = ("kite", "hat", "scarf", "balloon", "paper bird", "ribbon", "paper star")
_ROLLING = ("ball", "marble", "wooden ring", "bell", "spinning top", "glass bead")
_STUCK_SKILLS = {"high": ("climb", "fly"), "water": ("swim",), "hole": ("small", "dig"), "thorn": ("prickly", "small")}

_MISHAP_LIGHT = {
    "high": (
        "a [strong|sudden|cold] wind [took|caught] the {toy} and carried it up to {spot}, where it got stuck.",
        "the wind blew the {toy} [high into the air|far away], and it got stuck on {spot}.",
    ),
    "water": (
        "a [strong|sudden] wind blew the {toy} into {spot}.",
        "the wind took the {toy} and dropped it in the middle of {spot}.",
    ),
    "thorn": ("the wind blew the {toy} into {spot}.", "a gust of wind carried the {toy} into the middle of {spot}."),
}
_MISHAP_ROLLING = {
    "hole": (
        "the {toy} [slipped away|rolled away] and fell into {spot}.",
        "{h} tripped, and the {toy} rolled into {spot}.",
    ),
    "water": (
        "the {toy} rolled [faster and faster|away] and fell into {spot}.",
        "{h} tripped, and the {toy} fell into {spot} with a splash.",
    ),
    "thorn": ("the {toy} rolled away, right into the middle of {spot}.",),
}
_BLOCKED = {
    "high": (
        "{h} could not climb so high.",
        "it was much too high for {him}.",
        "{h} jumped and jumped, but {he} could not reach it.",
    ),
    "water": (
        "{h} could not swim, and the water was deep.",
        "the water was too deep for {him}.",
        "{h} tried to reach it with a stick, but the stick was too short.",
    ),
    "hole": (
        "{h} put {his} {hand} inside, but it was too deep.",
        "it was too dark and narrow for {him}.",
        "{h} could see the {toy}, but {he} could not reach it.",
    ),
    "thorn": ("the sharp thorns hurt {his} {hand}.", "{h} tried to reach it, but the thorns were too sharp."),
}
_RESCUE = {
    "climb": (
        "{f} climbed up to the {toy}, step by step, and [brought|carried] it down.",
        "{f} climbed to the top [as fast as the wind|slowly and carefully] and threw the {toy} down.",
    ),
    "fly": (
        "{f} flew up, took the {toy} and brought it down.",
        "{f} spread {f.his} wings, flew to the {toy} and dropped it [softly|gently] at the feet of {h}.",
    ),
    "swim": (
        "{f} jumped into the water, swam to the {toy} and brought it back.",
        "{f} swam out and pushed the {toy} back to the shore.",
    ),
    "small": (
        "{f} was small enough to squeeze inside, and soon {f.he} came out with the {toy}.",
        "{f} crept in where nobody else could go and pulled out the {toy}.",
    ),
    "dig": (
        "{f} dug and dug until the hole was wide enough to pull out the {toy}.",
        "{f} began to dig, and after a while {f.he} could lift out the {toy}.",
    ),
    "prickly": (
        "{f} had prickles of {f.his} own, so the thorns could not hurt {f.him}. {f.he} walked in "
        "and pushed "
        "the {toy} out.",
    ),
}
_OFFER = {
    "climb": "I am good at climbing",
    "fly": "I can fly up there",
    "swim": "I am a good swimmer",
    "small": "I am small enough to get in",
    "dig": "I am good at digging",
    "prickly": "Thorns do not hurt me",
}
_TOOLS = {
    "high": (
        ("a long ladder", "{h} leaned the ladder against {spot}, climbed up and took the {toy}."),
        ("a long pole", "{h} pushed the {toy} with the pole until it fell down."),
    ),
    "water": (
        ("a fishing net", "{h} put the net into the water and pulled the {toy} out."),
        ("a long rake", "{h} reached over the water with the rake and pulled the {toy} back."),
    ),
    "hole": (
        ("a string with a hook", "{h} let the hook down into the dark and pulled the {toy} up."),
        ("a little spade", "{h} dug with the spade until {he} could reach the {toy}."),
    ),
    "thorn": (
        (
            "a pair of thick gloves",
            "{h} put on the gloves, and the thorns could not hurt {him}. {He} pulled the {toy} out.",
        ),
        ("a thick blanket", "{h} put the blanket over the thorns and took the {toy} out."),
    ),
}


def lost_toy(rng: Random, place: Place) -> Tale:
    """A toy is blown or rolls to a spot the hero cannot reach; a fitting helper or a tool gets it back."""
    sort = rng.choice(sorted(place.spots))
    light = sort != "hole" and (sort == "high" or rng.random() < 0.5)
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero(frozenset(_STUCK_SKILLS[sort])))
    noun = rng.choice(_LIGHT if light else _ROLLING)
    tale.bind(toy=noun, colour=rng.choice(_COLOURS), spot=rng.choice(place.spots[sort]), giver=cast.elder(tale.hero))
    open_story(tale)
    tale.say(
        "{h} had a {colour} {toy}. [{giver} had made it for {him}|It was a present from {giver}].",
        "{giver} had given {him} a {colour} {toy}, and {he} [took it everywhere|loved it very much].",
        "the thing {he} loved most was {his} {colour} {toy}.",
        "{h} had a {colour} {toy} and [played with it every day|never went out without it].",
    )
    tale.say(
        "one [day|morning|windy day|afternoon], {h} was playing [outside|with the {toy}] when "
        + rng.choice((_MISHAP_LIGHT if light else _MISHAP_ROLLING)[sort]),
        "one [day|morning|afternoon], something bad happened: "
        + rng.choice((_MISHAP_LIGHT if light else _MISHAP_ROLLING)[sort]),
    )
    blocked = rng.choice(_BLOCKED[sort])
    if " but " not in blocked and rng.random() < 0.5:
        blocked = "{h} wanted {his} {toy} back, but " + blocked.replace("{h} ", "{he} ")
    tale.say(blocked)
    tale.maybe(
        "{h} [sat down and cried|felt very sad].",
        '"Oh no, my {toy}!" cried {h}.',
        '"How will I ever get my {toy} back?" {h} asked.',
    )
    tale.turn()
    helper = cast.helper(*_STUCK_SKILLS[sort]) if rng.random() < 0.7 else None
    if helper is None:
        _fetch_with_tool(tale, sort)
        close_story(tale, "happy", "thanks")
        return tale
    bind_helper(tale, helper)
    skill = rng.choice([skill for skill in _STUCK_SKILLS[sort] if skill in KINDS[helper.kind].skills])
    tale.say(
        f'just then, {helper.intro} came by. "Why are you sad?" asked {{f}}.',
        f"{helper.intro} heard {{him}} and came closer.",
        f"{{h}} went to look for help and met {helper.intro}.",
        f"then {{he}} met {helper.intro}.",
    )
    tale.say(
        '"My {toy} is stuck, and I cannot reach it," said {h}.',
        "{h} told {f} about the {toy}.",
        '"Can you help me get my {toy}?" asked {h}.',
        '"Please help me," said {h}. "I want my {toy} back."',
    )
    tale.turn()
    tale.say(
        f'"{_OFFER[skill]}," said {{f}}. "[I will help you|Let me try|Wait here]."',
        f'"Do not worry. {_OFFER[skill]}," said {{f}}.',
    )
    tale.say(*_RESCUE[skill])
    tale.turn()
    tale.say(
        "{h} was so happy to [hold|have] the {toy} again.",
        "now {h} had {his} {toy} back.",
        '"My {toy}!" cried {h}. "Thank you, {f_call}!"',
        "{h} [laughed|danced] with joy and held the {toy} tight.",
    )
    tale.maybe(
        "then they played with the {colour} {toy} together until [the sun went down|it got dark].",
        "{h} let {f} play with the {toy} too.",
        chance=0.4,
    )
    close_story(tale, "happy", "thanks", "thanks")
    return tale


def _fetch_with_tool(tale: Tale, sort: str) -> None:
    """The hero thinks of a tool, borrows it from a relative and gets the toy alone."""
    tool, use = tale.rng.choice(_TOOLS[sort])
    lender = tale.cast.elder(tale.hero)
    bind_helper(tale, lender)
    tale.bind(tool=tool)
    tale.say(
        "then {h} had an idea. {He} ran home and asked {f} for {tool}.",
        '"I know what I need," said {h}. {He} went to {f} and asked for {tool}.',
        "{h} thought for a long time. At last {he} went home to {f} and borrowed {tool}.",
    )
    tale.maybe('"Be careful," said {f}.', '"That is a good idea," said {f}.')
    tale.say(use)
    tale.turn()
    tale.say(
        '"I did it!" {he} cried. {He} had {his} {toy} again.',
        "at last {h} had {his} {toy} back.",
        "{h} held the {toy} tight and [laughed|jumped for joy].",
        "now the {colour} {toy} was safe again.",
    )
    tale.maybe("{f} was very proud of {him}.", chance=0.5)


_YOUNG = (
    ("duckling", "duck", "its feet were wet", "the water", "swam", ("river", "lake", "meadow", "farm")),
    ("kitten", "cat", "it smelled of milk", "the kitchen door", "sat", ("farm", "village", "garden", "beach")),
    ("lamb", "sheep", "it had a bell around its neck", "the green hill", "stood", ("farm", "meadow", "mountain")),
    (
        "fox cub",
        "fox",
        "there were small paw prints in the mud",
        "the den under the roots",
        "waited",
        ("forest", "meadow", "river"),
    ),
    ("owlet", "owl", "a soft feather lay on the path", "the hollow tree", "sat", ("forest", "mountain")),
    ("chick", "hen", "a bit of straw was stuck to its wing", "the hen house", "waited", ("farm", "village")),
    (
        "puppy",
        "dog",
        "it kept looking at the gate",
        "the house behind the gate",
        "waited",
        ("village", "garden", "farm", "beach"),
    ),
    ("bear cub", "bear", "it had honey on its nose", "the tree with the bees", "stood", ("forest", "mountain")),
)


def lost_young(rng: Random, place: Place) -> Tale:
    """The hero finds a lost young animal, follows a clue and brings it back to its mother."""
    fitting = [young for young in _YOUNG if place.name in young[5]]
    young, mother, clue, goal, posture, _ = rng.choice(fitting)
    cast = Cast.at(rng, place)
    cast.kinds.update((mother, young))
    hero = cast.hero()
    while hero.kind in (mother, "lamb"):
        hero = cast.hero()
    tale = Tale(rng, place, cast, hero)
    tale.bind(young=young, mother=mother, clue=clue, goal=goal, posture=posture)
    open_story(tale)
    tale.say(
        "one [day|morning|evening|rainy day], {h} heard [a tiny voice|somebody crying]. Behind a "
        "[stone|bush|tree] "
        "sat a little {young}, all alone.",
        "one [day|morning|evening], {h} found a little {young} [under a bush|behind a stone|on the path].",
        "on the way home one [day|evening], {h} met a little {young} that was [crying|shaking with fear].",
    )
    tale.say(
        '"I am lost," said the {young}. "I want my mother."',
        "the {young} had lost its mother and did not know the way home.",
        '"Where is your mother?" asked {h}. "I do not know," said the {young}.',
    )
    tale.say(
        "{h} wanted to bring the {young} home, but {he} did not know where it lived.",
        '"I will bring you home," said {h}. But {he} did not know the way.',
        "{h} wanted to help, but where should {he} begin?",
    )
    tale.maybe(
        "first they asked [an old crow|a snail|a busy bee], but [nobody knew|there was no answer].",
        "they looked behind every bush, but they found nobody.",
        chance=0.45,
    )
    tale.turn()
    tale.say(
        "then {h} looked carefully and saw that {clue}.",
        "{h} looked again. Yes, {clue}!",
        "but {h} was clever and saw that {clue}.",
    )
    tale.say(
        '"I think your home is near {goal}," {he} said.',
        '"Now I know where to go," said {h}. "We must find {goal}."',
        "that was a clue, so {h} led the {young} to {goal}.",
    )
    tale.maybe(
        "they walked slowly, and {h} sang a song so that the {young} was not afraid.",
        "the {young} was tired, so {h} let it rest [under a tree|on a warm stone] for a while.",
        chance=0.5,
    )
    tale.turn()
    tale.say(
        "there {posture} a {mother} who was looking everywhere for her {young}.",
        "and there {posture} the mother {mother}, calling for her little one.",
    )
    tale.say(
        '"My little {young}!" she cried, and she held it close.',
        "the {young} ran to its mother as fast as it could.",
        '"Mother!" cried the {young}. The {mother} was so happy that she cried too.',
    )
    tale.say(
        "the little {young} was home again.",
        "now the {young} was safe, and {h} was glad.",
        '"Thank you for bringing my {young} home," said the {mother}.',
    )
    close_story(tale, "happy")
    return tale
