"""What adapter_config.json says of an adapter, as PEFT writes it: ranks, scales, and which modules it is for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aethermind.errors import ConfigError
from aethermind.file_faults import remedy

__all__ = ["AdapterConfig"]

_FILE = "adapter_config.json"

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "use_dora": ((False,), "changes the length of weights as well (DoRA)"),
    "bias": (("none",), "changes biases"),
    "lora_bias": ((False,), "adds biases of its own"),
    "modules_to_save": (([],), "replaces whole modules"),
    "trainable_token_indices": (([], {}), "replaces embeddings of tokens"),
    "target_parameters": (([],), "changes parameters that are no linear module's"),
    "layer_replication": (([],), "repeats layers of the model"),
    "use_qalora": ((False,), "averages its inputs (QALoRA)"),
    "alora_invocation_tokens": (([],), "begins in the middle of a prompt (aLoRA)"),
}
"""By field, the values besides null with which an adapter is a sum of products, and what it does with others."""

_OTHER_BASE = ("pissa", "olora", "corda", "loftq")
"""Initialisations that take the adapter's beginning out of the model's weights, which are others from then on."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The configuration of one LoRA adapter (PEFT's `LoraConfig`).

    Patterns are regular expressions by which the end of a module's name has its own rank or alpha. `targets` is a
    regular expression of whole names, a list of ends of names, or `all-linear`; `is_partial` where they do not say
    which modules there are, because layers are chosen otherwise.
    """

    directory: Path
    rank: int
    alpha: float
    rank_pattern: Mapping[str, Any]
    alpha_pattern: Mapping[str, Any]
    is_rank_stabilised: bool
    targets: str | tuple[str, ...]
    is_partial: bool

    @classmethod
    def read(cls, directory: Path) -> AdapterConfig:
        """Read the configuration in a directory; ConfigError says what is missing, wrong or not supported."""
        raw = _read(directory)
        where = f"{_FILE} in {str(directory)!r}"
        kind = raw.get("peft_type")
        if kind != "LORA":
            raise ConfigError(f"{where} has the peft_type {kind!r:.80}; only LORA can be used.")
        for name, (neutral, what) in _REFUSED.items():
            value = raw.get(name)
            if value is not None and value not in neutral:
                raise ConfigError(
                    f"The adapter in {str(directory)!r} {what} ({name} is {value!r:.80}), which is not supported. "
                    "Merge it into the model's weights with PEFT's merge_and_unload, or train one without."
                )
        start = raw.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
            raise ConfigError(
                f"The adapter in {str(directory)!r} belongs to weights that its training changed (init_lora_weights is "
                f"{start!r:.80}). Convert it with PEFT's path_initial_model_for_weight_conversion, or merge it."
            )
        targets = raw.get("target_modules")
        is_list = isinstance(targets, list) and all(isinstance(one, str) for one in targets)
        if not targets or not (is_list or isinstance(targets, str)):
            raise ConfigError(f"{where} has target_modules {targets!r:.80}; that is a list of names, or a text.")
        chosen = ("exclude_modules", "layers_to_transform", "layers_pattern")
        return cls(
            directory,
            _rank(raw.get("r"), f"{where}: r"),
            _number(raw.get("lora_alpha"), f"{where}: lora_alpha"),
            _pattern(raw.get("rank_pattern"), _rank, f"{where}: rank_pattern"),
            _pattern(raw.get("alpha_pattern"), _number, f"{where}: alpha_pattern"),
            raw.get("use_rslora") is True,
            targets if isinstance(targets, str) else tuple(targets),
            any(raw.get(name) not in (None, []) for name in chosen),
        )

    def rank_of(self, module: str) -> int:
        """The rank of a module's update."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What a module's update is multiplied by: alpha / r, or alpha / √r where it is rank-stabilised (Kalajdzievski
        2023, arXiv:2312.03732).
        """
        rank, alpha = self.rank_of(module), float(_by_pattern(self.alpha_pattern, module, self.alpha))
        return alpha / (rank**0.5 if self.is_rank_stabilised else rank)

    def missing(self, found: Iterable[str], modules: Iterable[str]) -> list[str]:
        """Of `modules`, those that the targets name and that are not among `found`; none where targets do not say."""
        if self.is_partial:
            return []
        there = set(found)
        return [module for module in modules if module not in there and self._is_target(module)]

    def _is_target(self, module: str) -> bool:
        targets = self.targets
        if isinstance(targets, str):
            return targets.lower() == "all-linear" or re.fullmatch(targets, module) is not None
        return any(module == target or module.endswith(f".{target}") for target in targets)


def _read(directory: Path) -> dict[str, Any]:
    path = directory / _FILE
    if not path.is_file():
        raise ConfigError(
            f"{str(directory)!r} is no adapter: it holds no {_FILE}. Pass a directory as PEFT's save_pretrained writes "
            "it."
        )
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid JSON ({error}). " + remedy(path, error, otherwise="Download or write it again.")
        ) from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{path} should hold an object, not {type(contents).__name__}.")
    if isinstance(targets := contents.get("target_modules"), str):
        try:
            re.compile(targets)
        except re.error as error:
            raise ConfigError(f"{path}: target_modules {targets!r:.80} is no regular expression ({error}).") from None
    return contents


def _rank(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{what} should be a positive integer, got {value!r:.80}.")
    return value


def _number(value: Any, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < float("inf"):
        raise ConfigError(f"{what} should be a number, got {value!r:.80}.")
    return float(value)


def _pattern(value: Any, read: Callable[[Any, str], Any], what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} should be an object, got {value!r:.80}.")
    for key in value:
        try:
            re.compile(key)
        except re.error as error:
            raise ConfigError(f"{what} has the key {key!r:.80}, which is no regular expression ({error}).") from None
    return {key: read(one, f"{what}[{key!r}]") for key, one in value.items()}


def _by_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first key that matches the module's name or an end of it, as PEFT looks it up."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)
