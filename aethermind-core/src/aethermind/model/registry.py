"""Which package knows an architecture, and which models come with packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.errors import ConfigError, PluginError
from aethermind.model.architecture import Architecture
from aethermind.model.hf_config import architecture_name
from aethermind.plugins.claims import Claims, import_object
from aethermind.plugins.first_party import how_to_get, provider_of

if TYPE_CHECKING:
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.input_processor import InputProcessorFactory

__all__ = ["ArchitectureRegistry", "GgufFamilyRegistry", "InputProcessorRegistry", "ModelRegistry"]


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

_WRITE_ONE = "Use a model of one of these, or write its package: `aethermind plugin new model NAME` begins it."


class ArchitectureRegistry(Claims):
    """Names of `architectures` in config.json, and who reads them."""

    kind = "Architecture"

    def __init__(self) -> None:
        super().__init__()
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
        """Claim a name; a taken one is a PluginError unless `replaces=` names its provider.

        `cases` is the `"module:OBJECT"` of what the conformance kit tries of it, a sequence of
        `aethermind.testing.families.ModelCase`; those of other architectures in it are passed over.
        `aliases` are what else config.json may say and mean the same: the base model's name, or its `model_type`. A
        name that a package registers itself goes before, and the first who gives an alias keeps it.
        """
        super().register(name, target, provider=provider, replaces=replaces)
        for alias in aliases:
            self._aliases.setdefault(alias, name)
        self._cases.pop(name, None)
        if cases is not None:
            self._cases[name] = cases

    def find_cases(self, name: str) -> Sequence[Any] | None:
        """Import the cases of an architecture, or return None where none were declared."""
        target = self._cases.get(name)
        return None if target is None else import_object(target)

    def name_in(self, raw: Mapping[str, Any], directory: Path) -> str:
        """The registered name of what config.json names, or what it names; ConfigError where it names nothing."""
        named = architecture_name(raw, directory)
        return named if named in self._entries else self._aliases.get(named, named)

    def get(self, name: str) -> Architecture:
        """Import an architecture; ConfigError lists the installed ones when it is unknown."""
        architecture: Architecture | None = self.find_object(name)
        if architecture is None:
            known = ", ".join(self.names()) or "none"
            raise ConfigError(
                f"Unknown architecture {name!r}. Installed: {known}. "
                + how_to_get("architecture", name, otherwise=_WRITE_ONE)
            )
        return architecture


class InputProcessorRegistry(Claims):
    """Names of architectures whose prompts hold more than text."""

    kind = "Input processor of architecture"

    def find(self, name: str) -> InputProcessorFactory | None:
        """Import the factory of an architecture's processor, or return None."""
        factory: InputProcessorFactory | None = self.find_object(name)
        return factory


class GgufFamilyRegistry(Claims):
    """Values of `general.architecture` in GGUF files, and what they mean."""

    kind = "GGUF architecture"

    def get(self, name: str) -> GgufFamily:
        """Import a family; ConfigError lists the known ones when it is unknown."""
        family: GgufFamily | None = self.find_object(name)
        if family is None:
            known = ", ".join(self.names()) or "none"
            raise ConfigError(
                f"Unknown GGUF architecture {name!r}. Installed: {known}. "
                + how_to_get("gguf", name, otherwise=_WRITE_ONE)
            )
        return family


class ModelRegistry:
    """Models that ship inside packages, by name. Filled at boot, then frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, Callable[[], Path]] = {}
        self._is_frozen = False

    def register(self, name: str, locate: Callable[[], Path], *, provider: str) -> None:
        """Offer a model; a taken name is a PluginError."""
        assert not self._is_frozen, "registries are frozen after boot"
        if name in self._entries:
            raise PluginError(f"Model {name!r} of {provider} exists already; give it another name.")
        self._entries[name] = locate

    def freeze(self) -> None:
        self._is_frozen = True

    def names(self) -> list[str]:
        """All installed models, sorted."""
        return sorted(self._entries)

    def locate(self, model: str) -> Path:
        """Where an installed model lies, or `model` itself taken as a path."""
        entry = self._entries.get(model)
        if entry is not None:
            return entry()
        path = env.expand_home(model)
        if _HUB_ID.fullmatch(model) and not path.parent.exists():
            name = path.name
            raise ConfigError(
                f"There is no {model!r} here. If it is a model of the Hugging Face Hub, download it with "
                f"`hf download {model} --local-dir {name}`, and name ./{name}."
            )
        if not path.exists() and "/" not in model:
            known = ", ".join(self.names()) or "none"
            raise ConfigError(
                f"No model {model!r}: it is neither an installed model ({known}) nor a directory or .gguf file. "
                + ("" if provider_of("model", model) is None else how_to_get("model", model, otherwise="") + " ")
                + "Name one of these, or a path."
            )
        return path
