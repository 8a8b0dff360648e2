"""The things that exist in the stories and what fits with what: names, kinds, places and characters.

A plot draws a place from here, then characters who live in that place, then helpers whose skill answers the
obstacle. That is what keeps an otter out of the oak tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

GIRLS = [
    "Lily",
    "Anna",
    "Mia",
    "Rosa",
    "Ella",
    "Nora",
    "Lucy",
    "Clara",
    "Ida",
    "Maya",
    "Zoe",
    "Ruby",
    "Alice",
    "Emma",
    "Sara",
    "Nina",
    "Leah",
    "Amy",
    "Tess",
    "Ada",
    "Hana",
    "Vera",
    "Greta",
    "Elsa",
]
BOYS = [
    "Tom",
    "Ben",
    "Max",
    "Leo",
    "Sam",
    "Jack",
    "Finn",
    "Noah",
    "Oscar",
    "Theo",
    "Hugo",
    "Adam",
    "Paul",
    "Omar",
    "Luca",
    "Eli",
    "Ravi",
    "Felix",
    "Jonas",
    "Peter",
    "Nico",
    "Will",
    "Milo",
    "Emil",
]
SHE_ANIMALS = [
    "Hazel",
    "Fern",
    "Daisy",
    "Poppy",
    "Olive",
    "Pearl",
    "Maple",
    "Clover",
    "Ivy",
    "Luna",
    "Dot",
    "Mabel",
    "Bella",
    "Rosie",
    "Pippa",
    "Tilly",
]
HE_ANIMALS = [
    "Pip",
    "Bruno",
    "Rusty",
    "Moss",
    "Toby",
    "Barnaby",
    "Otto",
    "Basil",
    "Chester",
    "Tuck",
    "Biscuit",
    "Patch",
    "Rufus",
    "Dusty",
    "Monty",
    "Gus",
]
ALL_NAMES = frozenset(GIRLS + BOYS + SHE_ANIMALS + HE_ANIMALS)

_BEGINNINGS = [
    "Al",
    "Am",
    "An",
    "Bel",
    "Bo",
    "Da",
    "Do",
    "El",
    "Fa",
    "Fi",
    "Ga",
    "Ha",
    "Il",
    "In",
    "Jo",
    "Ka",
    "Ki",
    "La",
    "Le",
    "Lo",
    "Ma",
    "Mi",
    "Mo",
    "Na",
    "Ni",
    "No",
    "Or",
    "Pa",
    "Pe",
    "Ra",
    "Ro",
    "Sa",
    "Se",
    "Si",
    "Ta",
    "Te",
    "Ti",
    "To",
    "Ul",
    "Va",
    "Vi",
    "Wi",
    "Ya",
    "Za",
    "Zi",
    "Zo",
]
_MIDDLES = [
    "l",
    "m",
    "n",
    "r",
    "s",
    "t",
    "v",
    "k",
    "d",
    "b",
    "lin",
    "mar",
    "nel",
    "ri",
    "san",
    "tor",
    "ven",
    "zel",
    "dri",
    "bel",
]
_ENDINGS = {
    "she": ["a", "ia", "ina", "elle", "ie", "ara", "isa", "una", "ette"],
    "he": ["o", "us", "in", "on", "ek", "or", "ian", "as", "ert"],
}
_INVENTED_SHARE = 0.15


def invented_name(rng: Random, sex: str) -> str:
    """A name made of syllables, so that a reader of the stories learns to keep a name never seen before."""
    return rng.choice(_BEGINNINGS) + rng.choice(_MIDDLES) + rng.choice(_ENDINGS[sex])


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
    """A place with its phrases, who lives there, and where a thing may get stuck (by sort of spot)."""

    name: str
    at: tuple[str, ...]
    kinds: tuple[str, ...]
    children: bool
    spots: dict[str, tuple[str, ...]]
    pastimes: tuple[str, ...]
    finds: tuple[str, ...]

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


@dataclass(frozen=True, slots=True)
class Character:
    """Somebody in a story; `str()` is how the text calls them, `intro` is how they first appear."""

    name: str
    kind: str
    he: str
    him: str
    his: str
    intro: str
    hand: str = "hand"

    def __str__(self) -> str:
        return self.name

    @property
    def child(self) -> bool:
        """True for a boy or a girl."""
        return self.kind in ("girl", "boy")


_PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his"), "it": ("it", "it", "its")}


@dataclass(slots=True)
class Cast:
    """Draws characters for one story and never gives one name or one kind to two of them."""

    rng: Random
    place: Place
    names: set[str]
    kinds: set[str]

    @classmethod
    def at(cls, rng: Random, place: Place) -> Cast:
        """An empty cast for a story that happens in `place`."""
        return cls(rng, place, set(), set())

    def child(self) -> Character:
        """A named girl or boy."""
        sex = self.rng.choice(("she", "he"))
        name = self._fresh(GIRLS if sex == "she" else BOYS, sex)
        kind = "girl" if sex == "she" else "boy"
        return Character(name, kind, *_PRONOUNS[sex], f"a {kind} named {name}")

    def animal(self, kind: str, *, named: bool = True) -> Character:
        """An animal of `kind`, named, or called by its kind ("the owl") and then "it"."""
        self.kinds.add(kind)
        hand = KINDS[kind].hand
        if not named:
            adjective = self.rng.choice(HELPER_ADJECTIVES)
            return Character(f"the {kind}", kind, *_PRONOUNS["it"], f"a {adjective} {kind}", hand)
        sex = "she" if kind == "hen" else self.rng.choice(("she", "he"))
        name = self._fresh(SHE_ANIMALS if sex == "she" else HE_ANIMALS, sex)
        adjective = self.rng.choice(("", "", *(f"{word} " for word in HELPER_ADJECTIVES)))
        return Character(name, kind, *_PRONOUNS[sex], f"a {adjective}{kind} named {name}", hand)

    def hero(self, without: frozenset[str] = frozenset()) -> Character:
        """The main character: somebody of the place who has none of the skills in `without`."""
        if self.place.children and self.rng.random() < 0.6:
            return self.child()
        able = [kind for kind in self.place.kinds if not KINDS[kind].skills & without]
        return self.animal(self.rng.choice(able)) if able else self.child()

    def helper(self, *skills: str) -> Character | None:
        """An animal of the place with any of `skills`, of a kind that is new in the story, or None."""
        fitting = [kind for kind in self.place.helpers(*skills) if kind not in self.kinds]
        if not fitting:
            return None
        return self.animal(self.rng.choice(fitting), named=self.rng.random() < 0.6)

    def friend(self, hero: Character) -> Character:
        """A named companion: for a child another child or an animal, for an animal another animal."""
        if hero.child and self.rng.random() < 0.5:
            return self.child()
        kinds = [kind for kind in self.place.kinds if kind not in self.kinds]
        return self.animal(self.rng.choice(kinds))

    def elder(self, hero: Character) -> Character:
        """A relative of the hero, called "her grandmother" and so on."""
        role, sex = self.rng.choice(
            (
                ("mother", "she"),
                ("father", "he"),
                ("grandmother", "she"),
                ("grandfather", "he"),
                ("aunt", "she"),
                ("uncle", "he"),
            )
        )
        name = f"{hero.his} {role}"
        return Character(name, role, *_PRONOUNS[sex], name)

    def _fresh(self, names: list[str], sex: str) -> str:
        if self.rng.random() < _INVENTED_SHARE:
            names = [invented_name(self.rng, sex) for _ in range(3)]
        name = self.rng.choice([name for name in names if name not in self.names])
        self.names.add(name)
        return name
