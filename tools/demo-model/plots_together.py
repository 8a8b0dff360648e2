"""Plots about doing things together: a quarrel that ends in sharing, a party that almost fails."""

from __future__ import annotations

from random import Random

from cast import Cast
from frame import bind_helper, close_story, open_story
from tale import Tale
from world import Place

_WANTED = (
    ("the red swing", "sit on the swing", "the rope broke", "one can sit and the other can push"),
    (
        "the little boat",
        "row the boat",
        "the boat tipped over, and both got wet",
        "one can row and the other can steer",
    ),
    (
        "the last piece of cake",
        "eat the last piece of cake",
        "it fell on the floor",
        "one can cut and the other can choose",
    ),
    ("the big drum", "play the drum", "the drum rolled down the hill", "one can play and the other can sing"),
    ("the blue paint", "use the blue paint", "the paint fell over", "one can paint the sky and the other the grass"),
    ("the wooden sled", "ride on the sled", "the sled slid away without them", "you can ride on it together"),
    ("the big book", "hold the book", "a page tore", "one can read and the other can turn the pages"),
    ("the new kite", "fly the kite", "the string got into a knot", "one can run and the other can hold the string"),
)


_REPAIRED = {
    "the rope broke": "they tied the rope with a strong knot.",
    "it fell on the floor": "they made a new cake together.",
    "a page tore": "they glued the page.",
    "the paint fell over": "luckily, there was some paint left.",
    "the string got into a knot": "together they untied the knot.",
    "the drum rolled down the hill": "they ran down the hill and brought back the drum.",
    "the sled slid away without them": "they ran after the sled and caught it.",
}
"""How each mishap is mended."""


def quarrel(rng: Random, place: Place) -> Tale:
    """Two friends want the same thing and quarrel until it goes wrong; sharing lets both have it."""
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    friend = cast.friend(tale.hero)
    thing, wish, mishap, share = rng.choice(_WANTED)
    tale.bind(thing=thing, wish=wish, mishap=mishap, share=share, c=friend)
    open_story(tale)
    tale.say(
        f"{{his}} best friend was a {friend.kind} named {{c}}.",
        f"{{he}} had a friend, a {friend.kind} named {{c}}.",
        f"a {friend.kind} named {{c}} was {{his}} best friend.",
    )
    tale.say(
        "one [day|afternoon], {h} wanted to {wish}, but {c} wanted it too.",
        "one [day|morning], both of them wanted to {wish}.",
        '"I want to {wish}," said {h} one [day|morning]. "No, I want to!" said {c}.',
    )
    tale.say(
        '"I was here first!" cried {h}. "No, I was!" cried {c}.',
        '"It is mine!" said {h}. "It is not!" said {c}.',
        "they shouted at each other."
        if thing in ("the last piece of cake", "the blue paint")
        else "each of them held on to {thing}, and nobody let go.",
    )
    tale.say("they pulled and pushed, and then {mishap}.", "they did not stop, until {mishap}.")
    tale.maybe("now [they were both sad|nobody was happy].", "{h} went one way and {c} went the other way.", chance=0.6)
    tale.turn()
    if rng.random() < 0.65:
        _advise(rng, place, cast, tale)
    else:
        _apologise(tale, share)
    tale.turn()
    tale.say(_REPAIRED.get(mishap, "they turned the boat around and climbed in again."))
    tale.say(
        "so they shared {thing}, and it was much more fun.",
        "then they shared {thing}, and both were happy.",
        "now both of them had {thing}, and nobody was angry.",
    )
    tale.maybe(
        "{h} learned that a friend is worth more than {thing}.",
        "since then, {h} and {c} have always shared.",
        '"It is better together," said {c}.',
        '"Sharing is more fun," said {h}.',
        chance=0.55,
    )
    return tale


_PARTIES = (
    ("a picnic", "dark clouds came and it began to rain", "shelter", "ate and told stories"),
    ("a dance", "the music box broke", "music", "danced until the stars came out"),
    ("a play", "the curtain tore from top to bottom", "curtain", "clapped and clapped"),
    ("a lantern walk", "the wind blew out all the candles", "light", "walked through the night and sang"),
    ("a race", "the path was full of mud", "path", "ran and laughed"),
)
_SOLUTIONS = {
    "shelter": (
        ("We can go into the old barn", "they carried everything into the old barn"),
        ("We can hang a big cloth between the trees", "they hung a big cloth between the trees, and under it was dry"),
    ),
    "music": (
        ("We can sing and beat on pots", "some sang, and the others beat on pots and spoons"),
        ("I have a flute at home", "{f} ran home and came back with a flute"),
    ),
    "curtain": (
        ("We can use my blanket", "they hung up the blanket, and it was a fine curtain"),
        ("We can sew it", "they sewed it with red thread, and it looked better than before"),
    ),
    "light": (
        (
            "We can put the candles into jars",
            "they put every candle into a glass jar, where the wind could not reach it",
        ),
        ("We can ask the fireflies", "a hundred fireflies came and sat on the lanterns"),
    ),
    "path": (
        ("We can put straw on the mud", "they put straw on the mud until the path was dry"),
        ("We can race in little boats made of bark", "everybody made a little boat, and the boats raced in the stream"),
    ),
}


def _advise(rng: Random, place: Place, cast: Cast, tale: Tale) -> None:
    """A third animal comes and proposes to share."""
    kinds = [kind for kind in place.kinds if kind not in cast.kinds]
    wise = cast.animal(rng.choice(kinds), named=rng.random() < 0.5)
    bind_helper(tale, wise)
    tale.say(
        f"{wise.intro} had heard the noise and came to them.",
        f"{wise.intro} shook {wise.his} head.",
        f"then {wise.intro} came by.",
    )
    tale.say(
        '"Why do you fight?" asked {f}. "If you share, {share}."',
        '"You are friends," said {f}. "If you share, {share}."',
    )
    tale.say(
        "the two friends looked at each other.",
        '"That is true," said {h}.',
        '"We did not think of that," said {c}.',
    )


def _apologise(tale: Tale, share: str) -> None:
    """One of the friends apologises and proposes to share."""
    tale.say(
        'after a while, {h} came back. "I am sorry," {he} said.',
        '"I am sorry," said {c}. "I am sorry too," said {h}.',
        'it was too quiet without {c}. So {h} went to {c.him} and said, "I am sorry."',
    )
    tale.bind(share=share.replace("you", "we"))
    tale.say('"Let us share," said {h}. "Then {share}."', '"If we share, {share}," said {c}.')


def party(rng: Random, place: Place) -> Tale:
    """The hero has planned a feast; something spoils it, and an idea saves it."""
    what, trouble, need, ending = rng.choice(_PARTIES)
    idea, done = rng.choice(_SOLUTIONS[need])
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    friend = cast.friend(tale.hero)
    bind_helper(tale, friend)
    tale.bind(what=what, trouble=trouble, ending=ending, idea=idea, bare=what.split(maxsplit=1)[1])
    open_story(tale)
    tale.say(
        "{h} wanted to have {what} for all {his} friends.",
        "for weeks, {h} had looked forward to one thing: {what} with all {his} friends.",
        '"I want to have {what} with all my friends," said {h} one day.',
    )
    tale.say(
        "{he} made everything ready, and a {f.kind} named {f} helped {him}.",
        "together with a {f.kind} named {f}, {he} made everything ready.",
    )
    tale.maybe("everybody was invited.", "they invited all their friends.", chance=0.5)
    tale.say(
        "but on the day of the {bare}, {trouble}.",
        "the great day came. But then {trouble}.",
        "the guests were already there when {trouble}.",
    )
    tale.say(
        '"Now there will be no {bare}," said {h} [sadly|with tears in {his} eyes].',
        '"Everything is spoiled!" cried {h}.',
        "{h} was so sad that {he} wanted to send everybody home.",
    )
    tale.turn()
    tale.say(
        '"Wait," said {f}. "{idea}."',
        'but {f} did not give up. "{idea}," {f.he} said.',
        '{f} thought for a moment. "I know! {idea}."',
    )
    tale.say(f"[so|and so|everybody helped, and] {done}.")
    tale.turn()
    tale.say(
        "the {bare} could begin. The friends {ending}.",
        "then the {bare} began, and they all {ending}.",
        "so {h} had {his} {bare} after all, and everybody {ending}.",
    )
    tale.maybe(
        '"This is the best {bare} of all," said {h}.',
        '"It is even better than we planned," said {f}.',
        '"Thank you, {f}," said {h}. "You saved the {bare}."',
        chance=0.6,
    )
    close_story(tale, "happy", "thanks")
    return tale
