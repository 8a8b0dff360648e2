"""A LoRA adapter on disk, as PEFT writes it: adapter_config.json and adapter_model.safetensors.

For each linear module the file has two low-rank matrices, `base_model.model.MODULE.lora_A.weight` [r, K] and
`lora_B.weight` [N, r], perhaps with the adapter's name before `weight`; their scaled product is added to the module's
weight. `fan_in_fan_out` describes the storage of the weight itself and has no effect here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.remapped import StoredRows
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.errors import CheckpointError, ConfigError, remedy

__all__ = ["Adapter", "AdapterConfig", "LowRankUpdate"]

_TENSOR_FILE = "adapter_model.safetensors"
_NAME = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight$")
_FLOATS = ("F32", "F16", "BF16")
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """The update of one weight [N, K]: upᵀ · down.

    `down` is [r, K] in its stored dtype; `up` is float32 [r, N], scaled.
    """

    down: npt.NDArray[Any]
    up: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        """The rank r."""
        return len(self.down)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits a model: its updates by the name of the weight, and a digest of their contents."""

    updates: Mapping[str, LowRankUpdate]
    digest: bytes

    @classmethod
    def read(cls, directory: Path, weights: Mapping[str, tuple[int, int]]) -> Adapter:
        """Read an adapter for a model whose linear modules have these weights, [N, K] by name.

        Raises ConfigError for a broken or unsupported configuration, CheckpointError for tensors that are not exactly
        those of such an adapter: names, pairs, shapes, dtypes, finite values.
        """
        config = AdapterConfig.read(directory)
        file = _open(directory)
        pairs = _pairs_of_tensors(file, weights)
        modules = {name.removesuffix(".weight"): name for name in weights}
        missing = [f"{module}.lora_{side}" for module, pair in pairs.items() for side in "AB" if side not in pair]
        missing += [f"{module}.lora_A" for module in config.missing(pairs, modules)]
        if missing or not pairs:
            raise CheckpointError(
                f"{file.path} lacks {_listing(missing) or 'every tensor'}, which its configuration promises. Fetch or "
                "write the adapter again."
            )
        updates: dict[str, LowRankUpdate] = {}
        content_hash = sha256()
        for module, pair in sorted(pairs.items()):
            name, scale = modules[module], config.scale_of(module)
            num_outputs, num_inputs = weights[name]
            rank = config.rank_of(module)
            down = _read_matrix(file, pair["A"], (rank, num_inputs))
            up = _read_matrix(file, pair["B"], (num_outputs, rank))
            updates[name] = LowRankUpdate(down, np.ascontiguousarray(up.T).astype(np.float32) * np.float32(scale))
            for array in (down, up):
                content_hash.update(repr((module, scale, str(array.dtype), array.shape)).encode())
                content_hash.update(np.ascontiguousarray(array).view(np.uint8).data)
        return cls(updates, content_hash.digest())

    def sliced(self, rows: Mapping[str, StoredRows]) -> Adapter:
        """Return the updates of the weights in `rows`, each of which consists of rows of an adapted matrix."""
        updates = {}
        for weight, source in rows.items():
            if (update := self.updates.get(source.stored_name)) is not None:
                up = update.up if source.rows is None else np.ascontiguousarray(update.up[:, source.rows])
                updates[weight] = LowRankUpdate(update.down, up)
        return Adapter(updates, self.digest)


def _open(directory: Path) -> SafetensorsFile:
    path = directory / _TENSOR_FILE
    if not path.is_file():
        others = sorted(entry.name for entry in directory.glob("adapter_model.*"))
        found = f"found {', '.join(others)}" if others else "found nothing like it"
        raise CheckpointError(
            f"{str(directory)!r} has no {_TENSOR_FILE} ({found}). Save the adapter with PEFT's save_pretrained, "
            "which writes safetensors."
        )
    return SafetensorsFile(path)


def _pairs_of_tensors(file: SafetensorsFile, weights: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, str]]:
    """By module, the names of its tensors A and B. CheckpointError for a tensor that belongs to no weight."""
    pairs: dict[str, dict[str, str]] = {}
    unknown = []
    for name in file.names:
        match = _NAME.match(name)
        if match is None or f"{match['module']}.weight" not in weights:
            unknown.append(name)
            continue
        pair = pairs.setdefault(match["module"], {})
        if match["side"] in pair:
            raise CheckpointError(f"{file.path} has {pair[match['side']]} and {name}, which are the same matrix.")
        pair[match["side"]] = name
    if unknown:
        raise CheckpointError(
            f"{file.path} has {len(unknown)} tensors that belong to no linear projection of the model "
            f"({_listing(unknown)}). Check that the adapter was trained for this model; embeddings, lm_head "
            "and whole modules cannot be adapted."
        )
    return pairs


def _read_matrix(file: SafetensorsFile, name: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Read a matrix of the adapter; CheckpointError for another shape or dtype, or values that are not finite."""
    info = file.info(name)
    if info.shape != shape:
        raise CheckpointError(
            f"{name} in {file.path} is {list(info.shape)} instead of {list(shape)}. Check that the adapter was trained "
            "for this model, and that its configuration belongs to it."
        )
    if info.dtype_name not in _FLOATS:
        raise CheckpointError(f"{name} in {file.path} is stored in {info.dtype_name}, not in {', '.join(_FLOATS)}.")
    array = file.array(name)
    if not np.isfinite(array.astype(np.float32)).all():
        raise CheckpointError(f"{name} in {file.path} contains NaN or infinity. Train or fetch the adapter again.")
    return array


def _listing(items: list[str]) -> str:
    """The first items, and how many more there are."""
    rest = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f", and {rest} more" if rest > 0 else "")


_CONFIG_FILE = "adapter_config.json"

_UNSUPPORTED_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "use_dora": ((False,), "changes the magnitude of weights as well (DoRA)"),
    "bias": (("none",), "changes biases"),
    "lora_bias": ((False,), "adds biases of its own"),
    "modules_to_save": (([],), "replaces whole modules"),
    "trainable_token_indices": (([], {}), "replaces embeddings of tokens"),
    "target_parameters": (([],), "changes parameters that are no linear module's"),
    "layer_replication": (([],), "repeats layers of the model"),
    "use_qalora": ((False,), "averages its inputs (QALoRA)"),
    "alora_invocation_tokens": (([],), "begins in the middle of a prompt (aLoRA)"),
}
"""The supported values of a field besides null, and what an adapter with other values does, by field."""

_CHANGED_BASE_WEIGHTS = ("pissa", "olora", "corda", "loftq")
"""Initialisations that subtract the initial adapter from the model's weights: the adapter fits only such weights."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The configuration of one LoRA adapter (PEFT's `LoraConfig`).

    Attributes:
        rank_pattern, alpha_pattern: ranks and alphas by a regular expression that the end of a module's name matches.
        targets: a regular expression of whole names, a list of ends of names, or `all-linear`.
        is_partial: whether further fields restrict the layers, so that not all modules of `targets` are adapted.
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
        raw = _read_config(directory)
        where = f"{_CONFIG_FILE} in {str(directory)!r}"
        peft_type = raw.get("peft_type")
        if peft_type != "LORA":
            raise ConfigError(f"{where} has the peft_type {peft_type!r:.80}; only LORA can be used.")
        for name, (supported, what) in _UNSUPPORTED_FIELDS.items():
            value = raw.get(name)
            if value is not None and value not in supported:
                raise ConfigError(
                    f"The adapter in {str(directory)!r} {what} ({name} is {value!r:.80}), which is not supported. "
                    "Merge it into the model's weights with PEFT's merge_and_unload, or train one without."
                )
        initialisation = raw.get("init_lora_weights")
        if isinstance(initialisation, str) and initialisation.lower().startswith(_CHANGED_BASE_WEIGHTS):
            raise ConfigError(
                f"The adapter in {str(directory)!r} belongs to weights that its training changed (init_lora_weights is "
                f"{initialisation!r:.80}). Convert it with PEFT's path_initial_model_for_weight_conversion, or merge "
                "it."
            )
        targets = raw.get("target_modules")
        is_list = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
        if not targets or not (is_list or isinstance(targets, str)):
            raise ConfigError(f"{where} has target_modules {targets!r:.80}; that is a list of names, or a text.")
        layer_fields = ("exclude_modules", "layers_to_transform", "layers_pattern")
        return cls(
            directory,
            _rank(raw.get("r"), f"{where}: r"),
            _number(raw.get("lora_alpha"), f"{where}: lora_alpha"),
            _pattern(raw.get("rank_pattern"), _rank, f"{where}: rank_pattern"),
            _pattern(raw.get("alpha_pattern"), _number, f"{where}: alpha_pattern"),
            raw.get("use_rslora") is True,
            targets if isinstance(targets, str) else tuple(targets),
            any(raw.get(name) not in (None, []) for name in layer_fields),
        )

    def rank_of(self, module: str) -> int:
        """The rank of a module's update."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The scale of a module's update: alpha / r, or alpha / √r if it is rank-stabilised (Kalajdzievski 2023,
        arXiv:2312.03732).
        """
        rank, alpha = self.rank_of(module), float(_by_pattern(self.alpha_pattern, module, self.alpha))
        return alpha / (rank**0.5 if self.is_rank_stabilised else rank)

    def missing(self, found: Iterable[str], modules: Iterable[str]) -> list[str]:
        """List the `modules` that `targets` names and that are not in `found`; empty if `is_partial`."""
        if self.is_partial:
            return []
        adapted = set(found)
        return [module for module in modules if module not in adapted and self._is_target(module)]

    def _is_target(self, module: str) -> bool:
        targets = self.targets
        if isinstance(targets, str):
            return targets.lower() == "all-linear" or re.fullmatch(targets, module) is not None
        return any(module == target or module.endswith(f".{target}") for target in targets)


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / _CONFIG_FILE
    if not path.is_file():
        raise ConfigError(
            f"{str(directory)!r} is no adapter: it holds no {_CONFIG_FILE}. Pass a directory as PEFT's "
            "save_pretrained writes it."
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
    """Read an object of values by regular expression; ConfigError for anything else. `what` names the field."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} should be an object, got {value!r:.80}.")
    for key in value:
        try:
            re.compile(key)
        except re.error as error:
            raise ConfigError(f"{what} has the key {key!r:.80}, which is no regular expression ({error}).") from None
    return {key: read(item, f"{what}[{key!r}]") for key, item in value.items()}


def _by_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first key that matches the module's name or an end of it, as in PEFT."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)
