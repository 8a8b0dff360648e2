"""Who appears in a story: characters drawn to fit a place, no name and no kind twice."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from names import BOYS, GIRLS, HE_ANIMALS, SHE_ANIMALS, invented_name
from world import HELPER_ADJECTIVES, KINDS, Place


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
        if self.rng.random() < self.place.invented_names:
            names = [invented_name(self.rng, sex) for _ in range(3)]
        name = self.rng.choice([name for name in names if name not in self.names])
        self.names.add(name)
        return name
