"""What can be begun: the kinds of packages, what their tests need, and what their authors do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aethermind.cli.plugin_new.names import Names
    from aethermind.runtime import Runtime

__all__ = ["KINDS", "Kind", "KindOfPackage"]


class Kind(StrEnum):
    """The kinds by the names that one types; each has a folder below `templates`."""

    BACKEND = "backend"
    MODEL = "model"
    OPERATOR = "operator"
    KV_STORE = "kv-store"
    POLICY = "policy"


class KindOfPackage(NamedTuple):
    """A kind: its name in a sentence, what its tests import, a command that shows it at work, and a name's rivals.

    `claimed` is what the package will register, `taken` the names that are registered already.
    """

    title: str
    test_requirements: tuple[str, ...]
    commands: tuple[str, ...]
    claimed: Callable[[Names], str]
    taken: Callable[[Runtime], Iterable[str]]

    @property
    def article(self) -> str:
        """What stands before the title: `a backend`, `an operator`."""
        return "an" if self.title[0] in "aeiou" else "a"


_DEMO = ("aethermind-qwen2",)

KINDS: dict[Kind, KindOfPackage] = {
    Kind.BACKEND: KindOfPackage(
        "backend",
        ("aethermind-core[testing]", *_DEMO),
        (
            'aethermind generate "Once upon a time" --device {name}',
            "aethermind explain --model demo --device {name}",
            "aethermind conform {name}",
        ),
        lambda names: names.name,
        lambda runtime: ["auto", *(entry.name for entry in runtime.devices)],
    ),
    Kind.MODEL: KindOfPackage(
        "model family",
        ("aethermind-core[testing]",),
        (
            "aethermind conform {name}",
            "aethermind generate --model DIRECTORY  # of a checkpoint whose architecture is {class_name}ForCausalLM",
        ),
        lambda names: f"{names.class_name}ForCausalLM",
        lambda runtime: runtime.architectures.names(),
    ),
    Kind.OPERATOR: KindOfPackage(
        "operator",
        (),
        ("aethermind ops {identifier}",),
        lambda names: names.identifier,
        lambda runtime: [operator.name for operator in runtime.operators],
    ),
    Kind.KV_STORE: KindOfPackage(
        "KV store",
        _DEMO,
        ('aethermind generate "Once upon a time" --kv-store {name}:/tmp/{name}',),
        lambda names: names.name,
        lambda runtime: runtime.kv_stores.names(),
    ),
    Kind.POLICY: KindOfPackage(
        "scheduling policy",
        _DEMO,
        (
            "aethermind simulate TRACE --policy fcfs,{name}  # README.md writes a small trace",
            "aethermind serve --scheduling-policy {name}",
        ),
        lambda names: names.name,
        lambda runtime: runtime.policies.names(),
    ),
}
