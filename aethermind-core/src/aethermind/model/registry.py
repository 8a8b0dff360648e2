"""Registries of what model packages provide: architectures, GGUF families, input processors, bundled models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aethermind.errors import AetherMindError, ConfigError, PluginError
from aethermind.first_party import Kind, install_advice, provider_of
from aethermind.model.architecture import Architecture, CausalLM, HasMTP, TextEncoder
from aethermind.model.hf_files import architecture_name
from aethermind.model.hub import find_cached, hub_name, local_path
from aethermind.plugins.registry import Registry, import_object

if TYPE_CHECKING:
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.hub_arrival import Arrival
    from aethermind.model.hub_files import HubName, RepoKind
    from aethermind.model.input_processor import InputProcessorFactory
    from aethermind.model.mtp import MTPModule

__all__ = ["ArchitectureRegistry", "ModelRegistry", "gguf_families", "input_processors"]

_T = TypeVar("_T")

_WRITE_A_PLUGIN = (
    "Use a model with one of these architectures, or write a plugin for it: `aethermind plugin new model NAME` "
    "creates its skeleton."
)


_COUNT = re.compile(r"(^|_)n(um)?_(\w+_)?(layers?|heads?|experts?)$")
"""Matches the names of fields that count layers, heads or experts."""
_MAX_COUNT = 2**16
"""The most layers, heads or experts of a model: 100 times those of the largest published ones."""


class ArchitectureRegistry(Registry[Architecture]):
    """Architectures by their names in config.json, with aliases and the test cases for the conformance kit."""

    def __init__(self) -> None:
        super().__init__("Architecture", "architecture", advice=_advice_for("architecture"))
        self._cases: dict[str, str] = {}
        self._aliases: dict[str, str] = {}

    def register(
        self,
        name: str,
        target: str,
        *,
        provider: str,
        replaces: str | None = None,
        cases: str | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Register the object `target`, given as `"package.module:OBJECT"`, of the package `provider` under a name.

        PluginError for a name that another package has, unless `replaces=` names that package.

        `cases` is the `"module:OBJECT"` of a sequence of `aethermind.testing.families.ModelCase`, which the conformance
        kit runs; cases of other architectures in it are skipped.
        `aliases` are other names in config.json with the same meaning: the base model's name, or its `model_type`. A
        registered name takes precedence over an alias, and the first package that gives an alias keeps it.
        """
        super().register(name, target, provider=provider, replaces=replaces)
        for alias in aliases:
            self._aliases.setdefault(alias, name)
        self._cases.pop(name, None)
        if cases is not None:
            self._cases[name] = cases

    def create_model(self, name: str, raw: Mapping[str, Any]) -> CausalLM | TextEncoder:
        """Make a model of the architecture `name` from config.json's contents.

        ConfigError for fields that do not describe one. What the package's code raises for such fields (KeyError,
        TypeError, ValueError, …) becomes a ConfigError.
        """
        return self._create(name, raw, self.get(name).create)

    def create_mtp(self, name: str, raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the module for multi-token prediction of a model; None if the architecture or config.json has none.

        ConfigError as in `create_model`.
        """
        architecture = self.get(name)
        return self._create(name, raw, architecture.create_mtp) if isinstance(architecture, HasMTP) else None

    def _create(self, name: str, raw: Mapping[str, Any], create: Callable[[Mapping[str, Any]], _T]) -> _T:
        _check_counts(raw)
        try:
            return create(raw)
        except AetherMindError:
            raise
        except KeyError as error:
            raise ConfigError(f"config.json has no {error.args[0]}, which a {name} needs.") from error
        except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"config.json does not describe a {name}: a field has a type or a size that its package "
                f"{self.provider(name)} does not expect ({type(error).__name__}: {error})."
            ) from error

    def find_cases(self, name: str) -> Sequence[Any] | None:
        """Import the cases of an architecture, or return None if its package declares none."""
        target = self._cases.get(name)
        return None if target is None else import_object(target)

    def resolve_name(self, raw: Mapping[str, Any], directory: Path) -> str:
        """Return the name under which config.json's architecture is registered; its name there if it is not.

        ConfigError if config.json names no architecture.
        """
        name = architecture_name(raw, directory)
        return name if name in self._entries else self._aliases.get(name, name)


def _check_counts(raw: Mapping[str, Any]) -> None:
    """Raise ConfigError for counts that no model has: packages make a list entry for each layer, head or expert."""
    objects = (raw, *(value for value in raw.values() if isinstance(value, Mapping)))
    for field, value in (pair for each in objects for pair in each.items()):
        if isinstance(value, int) and value > _MAX_COUNT and _COUNT.search(field):
            raise ConfigError(f"{field} in config.json is {value:,}, which is more than any model has.")


def input_processors() -> Registry[InputProcessorFactory]:
    """Return an empty registry of input processors, by the names of the multimodal architectures that use them."""
    return Registry("Input processor of architecture", "input processor")


def gguf_families() -> Registry[GgufFamily]:
    """Return an empty registry of GGUF families, by the values of `general.architecture` in GGUF files."""
    return Registry("GGUF architecture", "GGUF architecture", advice=_advice_for("gguf"))


def _advice_for(kind: Kind) -> Callable[[str], str]:
    return lambda name: install_advice(kind, name, otherwise=_WRITE_A_PLUGIN)


class ModelRegistry:
    """Models that packages contain, by name. Filled at startup, then frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, Callable[[], Path]] = {}
        self._is_frozen = False

    def register(self, name: str, locate: Callable[[], Path], *, provider: str) -> None:
        """Register a model; PluginError if there is one of this name."""
        assert not self._is_frozen, "registries are frozen after boot"
        if name in self._entries:
            raise PluginError(f"Model {name!r} of {provider} exists already; give it another name.")
        self._entries[name] = locate

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def names(self) -> list[str]:
        """Return the names of all installed models, sorted."""
        return sorted(self._entries)

    def locate(self, model: str, kind: RepoKind = "model") -> Path:
        """Return the path of a model, given as an installed model's name, a path or a name on the Hugging Face Hub.

        From the Hub only the files of `kind` are downloaded (see `model.hub`). ConfigError for a name that is not
        found; a path with a slash is returned whether it exists or not.
        """
        entry = self._entries.get(model)
        if entry is not None:
            return entry()
        path = local_path(model, kind)
        if not path.exists() and "/" not in model:
            known = ", ".join(self.names()) or "none"
            raise ConfigError(
                f"No model {model!r}: it is neither an installed model ({known}) nor a directory or .gguf file, and "
                "models of the Hugging Face Hub are named ORG/NAME. "
                + ("" if provider_of("model", model) is None else install_advice("model", model, otherwise="") + " ")
                + "Give one of these names, or a path."
            )
        return path

    def locate_arriving(self, model: str) -> Path | Arrival:
        """As `locate`, but a model of the Hub that is not in the cache may be without its weights: they arrive."""
        name = self._missing(model)
        if name is None:
            return self.locate(model)
        from aethermind.model.hub_arrival import begin_arrival

        return begin_arrival(name)

    def is_missing(self, model: str) -> bool:
        """Whether a model has the name of one of the Hub, and is not in the cache."""
        return self._missing(model) is not None

    def _missing(self, model: str) -> HubName | None:
        name = None if model in self._entries else hub_name(model)
        return None if name is None or find_cached(name) is not None else name
