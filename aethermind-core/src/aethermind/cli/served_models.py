"""The models of `serve`: from `--model`, a directory, or a file with options of each model; and the pool of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.cli import options
from aethermind.cli.models import estimate_memory, models_below
from aethermind.cli.settings import ModelPoolOptions, ProcessOptions
from aethermind.config.file import read_file
from aethermind.engine.config import EngineConfig
from aethermind.errors import AetherMindError, InvalidArgumentError, SettingsError, did_you_mean
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.runtime import Runtime
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.pool_entry import OpenModel, ProgressCallback
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["ListedModel", "arriving_models", "listed_models", "model_pool", "named_models"]

_log = get_logger(__name__)

_SHARD_SUFFIX = re.compile(r"-(\d{5})-of-\d{5}$")
"""The end of the stem of a shard's name, for GGUF files that are split: `-00001-of-00003`."""

_UNLOAD_TIMEOUT_S = 60.0
"""Seconds that an engine process may take to write packed weights and sessions when its model is unloaded."""

_MODEL_FIELDS = ("path", "ttl", "load_on_startup", "chat_template")
"""The fields of a model in a file that are not options of its engine."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model and its own settings: engine options, TTL in seconds, chat template, and whether it is loaded at start.

    A path with a slash that exists is made absolute. Otherwise, once its directory was deleted, it would be read as a
    name on the Hugging Face Hub.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ttl_s: float | None = None
    loads_at_start: bool = False
    chat_template: str | None = None
    is_discovered: bool = False
    """Whether it comes from `--models-dir`; then it is left out if it cannot be used."""

    def __post_init__(self) -> None:
        if "/" in self.path and (found := env.expand_home(self.path)).exists():
            object.__setattr__(self, "path", str(found.absolute()))


def named_models(given: Sequence[str] | None, served_model_name: str | None) -> dict[str, str]:
    """Return the models of `--model` by the name that clients use: NAME in NAME=MODEL, else the whole argument."""
    given = given or [options.chosen_model(None)]
    named = [_split_name(text) for text in given]
    if served_model_name is not None:
        if not served_model_name.strip():
            raise InvalidArgumentError("--served-model-name is empty; say what clients call the model.")
        if len(named) > 1:
            raise InvalidArgumentError(
                "--served-model-name names one model, and several are given; write --model NAME=MODEL for each."
            )
        return {served_model_name: named[0][1]}
    models = dict(named)
    if len(models) < len(named):
        raise InvalidArgumentError(
            f"Two models have the same name among {', '.join(name for name, _ in named)}; write --model NAME=MODEL."
        )
    return models


def _split_name(given: str) -> tuple[str, str]:
    name, _, model = given.partition("=")
    return (name, model) if name and model and not Path(given).exists() else (given, given)


def listed_models(
    given: Sequence[str] | None, served_model_name: str | None, pool: ModelPoolOptions
) -> dict[str, ListedModel]:
    """Return all models by name: those of `--model`, of `--models-file` and of `--models-dir`.

    InvalidArgumentError and SettingsError if a directory or file cannot be used, or if two models have the same name.
    """
    models: dict[str, ListedModel] = {}
    if given or served_model_name is not None or not (pool.models_dir or pool.models_file):
        models |= {name: ListedModel(path) for name, path in named_models(given, served_model_name).items()}
    if pool.models_file is not None:
        _add_models(models, _models_in_file(Path(pool.models_file)), "--models-file")
    if pool.models_dir is not None:
        _add_models(models, _models_in_directory(env.expand_home(pool.models_dir)), "--models-dir")
    return models


def _add_models(models: dict[str, ListedModel], more: Mapping[str, ListedModel], flag: str) -> None:
    if duplicates := sorted(models.keys() & more.keys()):
        raise InvalidArgumentError(
            f"Two models are called {duplicates[0]!r}, at least one of them by {flag}; rename one."
        )
    models |= more


def _models_in_directory(directory: Path) -> dict[str, ListedModel]:
    """Return the models in a directory: directories with a config.json, and .gguf files, whose shards are one model."""
    if not directory.is_dir():
        raise InvalidArgumentError(f"--models-dir {directory} is no directory; give one that has models in it.")
    models: dict[str, ListedModel] = {}
    for path in models_below(directory):
        name = path.name
        if path.suffix == ".gguf":
            part = _SHARD_SUFFIX.search(path.stem)
            if path.name.startswith("mmproj") or (part is not None and int(part[1]) > 1):
                continue
            name = _SHARD_SUFFIX.sub("", path.stem)
        _add_models(models, {name: ListedModel(str(path), is_discovered=True)}, "--models-dir")
    if not models:
        raise InvalidArgumentError(
            f"--models-dir {directory} has no models; put directories with a config.json, or .gguf files, into it."
        )
    return models


def _models_in_file(file: Path) -> dict[str, ListedModel]:
    if not file.is_file():
        raise SettingsError(f"{file} is not a file. Give the path of one with --models-file.")
    content = read_file(file)
    entries = content.get("models")
    if not isinstance(entries, dict) or not entries or len(content) > 1:
        raise SettingsError(f"{file} should have one section, `models`, with a model's options under each name.")
    if any(name is None or not str(name).strip() for name in entries):
        raise SettingsError(f"{file} has a model without a name; write what clients call it before the colon.")
    return {str(name): _parse_entry(entry, f"{file}: {name}") for name, entry in entries.items()}


def _parse_entry(entry: Any, where: str) -> ListedModel:
    """Parse a model of a file. SettingsError for an unknown field, or a value that is not allowed."""
    if isinstance(entry, str):
        entry = {"path": entry}
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(path, str) or not path.strip():
        raise SettingsError(f"{where} should be a model, or a mapping with `path` and options of its engine.")
    names = [option.name for option in fields(EngineConfig) if option.init]
    if unknown := [name for name in entry if name not in (*_MODEL_FIELDS, *names)]:
        raise SettingsError(
            f"{where} has an unknown field {unknown[0]!r}{did_you_mean(unknown[0], [*_MODEL_FIELDS, *names])}"
        )
    ttl_s, at_start, template = entry.get("ttl"), entry.get("load_on_startup", False), entry.get("chat_template")
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not ttl_s > 0):
        raise SettingsError(f"{where}: ttl should be a number of seconds above 0.")
    if not isinstance(at_start, bool):
        raise SettingsError(f"{where}: load_on_startup should be true or false.")
    if template is not None and not isinstance(template, str):
        raise SettingsError(f"{where}: chat_template should be a file, or the name of one of the model's templates.")
    own_options = {name: entry[name] for name in names if name in entry}
    try:
        EngineConfig(**own_options)
    except AetherMindError as error:
        raise SettingsError(f"{where}: {error}") from None
    return ListedModel(path, own_options, ttl_s, at_start, template)


def model_pool(
    models: Mapping[str, ListedModel],
    engine_options: Mapping[str, Any],
    pool: ModelPoolOptions,
    process: ProcessOptions,
    chat_template: ChosenTemplate | None,
) -> ModelPool:
    """Return a pool of these models, none of which is loaded yet. `engine_options` are those of all engines.

    Reads the models' configurations and raises the errors of doing so; a model of `--models-dir` is left out instead.
    Raises the errors of `check_names` for options that are wrong for every model.
    """
    from aethermind.engine.parts import check_names
    from aethermind.engine.process import RestartPolicy, StandbyProcess
    from aethermind.runtime import Runtime
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.pool_entry import ModelSource, engine_inprocess, engine_process
    from aethermind.text.chat_templates import ChosenTemplate

    runtime = Runtime.boot()
    check_names(runtime, EngineConfig(**engine_options))
    standby = StandbyProcess() if process.engine == "process" else None
    policy = RestartPolicy(
        0,
        stall_timeout_s=process.engine_step_timeout,
        close_timeout_s=_UNLOAD_TIMEOUT_S,
        advice="a later request loads it again",
    )

    def sources() -> Iterator[ModelSource]:
        for name, listed in models.items():
            config = EngineConfig(**{**engine_options, **listed.options})
            if listed.options:
                with _named(name):
                    check_names(runtime, config)
            template = chat_template if listed.chat_template is None else ChosenTemplate.read(listed.chat_template)
            try:
                max_model_len = _context_length(runtime, listed.path, config)
            except (AetherMindError, OSError) as error:
                if not listed.is_discovered:
                    raise
                _log.warning("%s is left out: %s", listed.path, error)
                continue
            estimated = _EstimatedModel(runtime, listed.path, config)
            open_engine: Callable[..., OpenModel] = engine_inprocess
            if standby is not None:
                open_engine = partial(engine_process, policy=policy, launch=standby.launch)
            open_model = partial(open_engine, name, listed.path, runtime=runtime, chat_template=template)
            yield ModelSource(
                name,
                partial(_open_within_budget, open_model, estimated),
                estimate=estimated.estimate,
                adapters=tuple(config.adapters or ()),
                max_model_len=max_model_len,
                ttl_s=pool.model_ttl if listed.ttl_s is None else listed.ttl_s,
                loads_at_start=listed.loads_at_start,
            )

    max_bytes = EngineConfig(memory=engine_options.get("memory")).memory_bytes
    return ModelPool(
        sources(),
        max_loaded=pool.models_max,
        max_bytes=max_bytes,
        load_timeout_s=pool.model_load_timeout,
        background=standby,
    )


def arriving_models(
    models: Mapping[str, str],
    engine_options: Mapping[str, Any],
    process: ProcessOptions,
    chat_template: ChosenTemplate | None,
) -> ModelPool:
    """Return a pool of models, by name, that the server loads while it listens, and never unloads.

    Their engine processes download those that are not in the cache.
    """
    from aethermind.engine.process import RestartPolicy
    from aethermind.runtime import Runtime
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.pool_entry import ModelSource, engine_process

    runtime, config = Runtime.boot(), EngineConfig(**engine_options)
    policy = RestartPolicy(process.max_restarts, stall_timeout_s=process.engine_step_timeout)
    options: dict[str, Any] = {"policy": policy, "runtime": runtime, "chat_template": chat_template}
    sources = [
        ModelSource(
            name,
            engine_process(name, path, config, **options),
            adapters=tuple(config.adapters or ()),
            loads_at_start=True,
            is_pinned=True,
        )
        for name, path in models.items()
    ]
    return ModelPool(sources, loads_while_listening=True)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the model in errors of its own options."""
    try:
        yield
    except AetherMindError as error:
        raise SettingsError(f"{name}: {error}") from None


def _open_within_budget(
    open_model: Callable[..., OpenModel], estimated: _EstimatedModel, on_progress: ProgressCallback
) -> AbstractAsyncContextManager[ServedModel]:
    """Open a model with the options that its estimate chose."""
    return open_model(config=estimated.config)(on_progress)


class _EstimatedModel:
    """The engine options of a model, whose memory is limited only if the model alone exceeds the budget of all models.

    Mutable: `estimate` sets the limit.
    """

    def __init__(self, runtime: Runtime, path: str, config: EngineConfig) -> None:
        self.config = replace(config, memory=None)
        self._runtime = runtime
        self._path = Path(path)
        self._limit = config.memory_bytes

    def estimate(self) -> int:
        """Return the bytes that the model will take, on the device and on the host."""
        found = estimate_memory(self._runtime, self._path, self.config)
        num_bytes: int = found["total_bytes"] + sum(found["host_parts"].values())
        if self._limit is not None and num_bytes > self._limit:
            self.config = replace(self.config, memory=str(self._limit))
            return self._limit
        return num_bytes


def _context_length(runtime: Runtime, path: str, config: EngineConfig) -> int:
    """Return the context length in tokens by a model's configuration and options, without loading the model."""
    source = runtime.open_source(path, config.tokenizer)
    raw = source.config()
    model = runtime.architectures.create_model(runtime.architectures.resolve_name(raw, source.path), raw)
    limit: int = model.config.max_position_embeddings
    return limit if config.max_model_len is None else min(limit, config.max_model_len)
