"""The things that exist in the stories and what fits with what: kinds and places.

A plot draws a place from here, then characters who live in that place, then helpers whose skill answers the
obstacle. That is what keeps an otter out of the oak tree.
"""

from __future__ import annotations

from dataclasses import dataclass

ADJECTIVES = (
    "little",
    "small",
    "young",
    "curious",
    "brave",
    "kind",
    "clever",
    "cheerful",
    "gentle",
    "quiet",
    "shy",
    "friendly",
    "lively",
)
HELPER_ADJECTIVES = ("friendly", "wise old", "kind", "clever", "cheerful", "busy", "gentle", "quick")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of animal: what it can do (skills that answer obstacles), its limb and what it likes to eat."""

    skills: frozenset[str]
    hand: str
    food: str


def _kind(skills: str, hand: str, food: str) -> Kind:
    return Kind(frozenset(skills.split()), hand, food)


KINDS: dict[str, Kind] = {
    "fox": _kind("run smell", "paw", "blackberries"),
    "rabbit": _kind("run dig", "paw", "carrots"),
    "mouse": _kind("small", "paw", "seeds"),
    "bear": _kind("strong", "paw", "honey"),
    "hedgehog": _kind("prickly", "paw", "apples"),
    "squirrel": _kind("climb", "paw", "nuts"),
    "otter": _kind("swim", "paw", "fish"),
    "duck": _kind("swim", "wing", "bread"),
    "frog": _kind("swim jump", "foot", "water lilies"),
    "owl": _kind("fly night", "wing", "plums"),
    "sparrow": _kind("fly", "wing", "seeds"),
    "crow": _kind("fly", "wing", "cherries"),
    "mole": _kind("dig", "paw", "turnips"),
    "beaver": _kind("swim build", "paw", "sweet roots"),
    "turtle": _kind("swim", "foot", "lettuce"),
    "cat": _kind("climb night", "paw", "milk"),
    "dog": _kind("smell strong run", "paw", "biscuits"),
    "goat": _kind("rock", "foot", "fresh grass"),
    "deer": _kind("run", "foot", "clover"),
    "badger": _kind("dig strong", "paw", "mushrooms"),
    "donkey": _kind("strong", "foot", "hay"),
    "seagull": _kind("fly", "wing", "fish"),
    "bat": _kind("fly night", "wing", "figs"),
    "pig": _kind("smell", "foot", "potatoes"),
    "hen": _kind("", "wing", "corn"),
    "lamb": _kind("run", "foot", "fresh grass"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place with its phrases, who lives there, and where a thing may get stuck (by sort of spot).

    `invented_names` is the share of characters whose name is made of syllables rather than taken from a list.
    """

    name: str
    at: tuple[str, ...]
    kinds: tuple[str, ...]
    children: bool
    spots: dict[str, tuple[str, ...]]
    pastimes: tuple[str, ...]
    finds: tuple[str, ...]
    invented_names: float = 0.0

    def helpers(self, *skills: str) -> list[str]:
        """Kinds living here that have any of `skills`."""
        return [kind for kind in self.kinds if KINDS[kind].skills & set(skills)]


PLACES: tuple[Place, ...] = (
    Place(
        "forest",
        ("in a quiet forest", "in a green forest", "at the edge of a big forest", "deep in the forest"),
        ("fox", "rabbit", "mouse", "bear", "hedgehog", "squirrel", "owl", "deer", "badger", "sparrow"),
        False,
        {
            "high": ("the old oak tree", "a tall pine tree"),
            "hole": ("a deep hole between the roots", "a hollow log"),
            "thorn": ("a thorny bramble bush", "a prickly holly bush"),
        },
        ("play among the tall trees", "jump over the mossy logs", "listen to the birds"),
        ("red leaves", "pine cones", "smooth acorns"),
    ),
    Place(
        "meadow",
        ("in a sunny meadow", "in a wide green meadow", "in a meadow full of flowers"),
        ("rabbit", "mouse", "fox", "hedgehog", "mole", "deer", "sparrow", "crow", "lamb", "frog", "duck"),
        False,
        {
            "high": ("the old willow tree", "a tall poplar tree"),
            "water": ("the pond", "the muddy stream"),
            "hole": ("a narrow hole in the ground", "an old burrow"),
            "thorn": ("a thorny rose bush", "a patch of nettles"),
        },
        ("run through the tall grass", "roll down the soft hills", "chase the yellow butterflies"),
        ("white daisies", "blue feathers", "round pebbles"),
    ),
    Place(
        "river",
        ("by a wide river", "on the bank of a river", "beside a slow brown river"),
        ("otter", "duck", "frog", "beaver", "mouse", "fox", "rabbit", "sparrow", "badger", "deer"),
        False,
        {
            "high": ("a tall willow tree", "the old alder tree"),
            "water": ("the river", "the deep river"),
            "hole": ("a gap between two stones", "a hole in the river bank"),
            "thorn": ("a thorny bush",),
        },
        ("skip stones across the water", "sit on the warm stones", "watch the dragonflies"),
        ("smooth pebbles", "white feathers", "yellow reeds"),
    ),
    Place(
        "lake",
        ("beside a blue lake", "near a calm lake", "in a little house by the lake"),
        ("otter", "duck", "frog", "turtle", "beaver", "fox", "mouse", "squirrel", "sparrow", "goat"),
        True,
        {
            "high": ("a tall birch tree", "the roof of the boat house"),
            "water": ("the lake", "the cold lake"),
            "hole": ("a crack between two rocks",),
            "thorn": ("a thorny bush",),
        },
        ("splash near the shore", "watch the little waves", "look for shiny stones"),
        ("shiny stones", "white feathers", "water lilies"),
    ),
    Place(
        "farm",
        ("on a small farm", "on a farm with a red barn", "on an old farm"),
        ("cat", "dog", "duck", "goat", "donkey", "mouse", "crow", "pig", "hen", "lamb"),
        True,
        {
            "high": ("the roof of the barn", "the tall apple tree"),
            "water": ("the duck pond", "the water trough"),
            "hole": ("a gap under the barn", "a hole behind the hay"),
            "thorn": ("a thorny hedge",),
        },
        ("jump in the hay", "run around the barn", "sit on the wooden fence"),
        ("golden straws", "brown feathers", "yellow flowers"),
    ),
    Place(
        "village",
        ("in a small village", "in a village at the foot of a hill", "in a village with a stone bridge"),
        ("cat", "dog", "donkey", "mouse", "sparrow", "goat", "hedgehog", "duck", "crow"),
        True,
        {
            "high": ("the roof of the bakery", "the tall chestnut tree", "the top of the bell tower"),
            "water": ("the village pond", "the old fountain"),
            "hole": ("a hole in the old wall", "a gap under the wooden steps"),
            "thorn": ("a thorny rose bush",),
        },
        ("play in the little square", "race along the narrow streets", "listen to the church bells"),
        ("chestnuts", "red leaves", "small round stones"),
    ),
    Place(
        "beach",
        ("by the sea", "in a white house by the sea", "near a sandy beach"),
        ("seagull", "turtle", "dog", "cat", "otter", "mouse", "goat", "donkey"),
        True,
        {
            "high": ("a tall palm tree", "the roof of the boat house"),
            "water": ("the waves", "a deep rock pool"),
            "hole": ("a crack between two rocks", "a hole in the old pier"),
            "thorn": ("a thorny dune bush",),
        },
        ("build castles in the sand", "run along the shore", "watch the white sails"),
        ("pink shells", "smooth green glass", "white shells"),
    ),
    Place(
        "mountain",
        ("high on a mountain", "in a hut on a mountain", "in a valley between two mountains"),
        ("goat", "bear", "fox", "owl", "crow", "badger", "dog", "donkey", "squirrel", "lamb"),
        True,
        {
            "high": ("a tall fir tree", "a steep rock"),
            "water": ("the cold mountain stream",),
            "hole": ("a crack in the rock", "a small dark cave"),
            "thorn": ("a thorny bush",),
        },
        ("climb over the big stones", "shout and hear the echo", "slide down the soft snow"),
        ("blue flowers", "sparkling stones", "pine cones"),
    ),
    Place(
        "garden",
        ("in a house with a big garden", "in a cottage with a sunny garden", "in a yellow house with a wild garden"),
        ("cat", "hedgehog", "sparrow", "mole", "mouse", "frog", "squirrel", "dog", "turtle"),
        True,
        {
            "high": ("the old cherry tree", "the roof of the shed"),
            "water": ("the garden pond", "the rain barrel"),
            "hole": ("a hole under the shed", "a gap between the stones"),
            "thorn": ("a thorny rose bush",),
        },
        ("swing under the cherry tree", "look for snails", "hide behind the bean plants"),
        ("red petals", "snail shells", "round pebbles"),
    ),
)
