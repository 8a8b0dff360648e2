"""The models that `serve` gets: from `--model`, from a directory and from a file with options for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.cli import options
from aethermind.cli.models import estimate_memory, models_below
from aethermind.cli.settings import ModelPoolOptions, ProcessOptions
from aethermind.config.file import read_file
from aethermind.config.suggest import did_you_mean
from aethermind.engine.config import EngineConfig
from aethermind.errors import AetherMindError, InvalidArgumentError, SettingsError
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.runtime import Runtime
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.pool_entry import OpenModel, ProgressCallback
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["ListedModel", "listed_models", "model_pool", "named_models"]

_log = get_logger(__name__)

_SHARD = re.compile(r"-(\d{5})-of-\d{5}$")
"""The end of the name of a part of a GGUF file that is split, without its suffix."""

_UNLOAD_TIMEOUT_S = 60.0
"""Seconds in which an engine process may write packed weights and sessions when its model is unloaded."""

_OWN_FIELDS = ("path", "ttl", "load_on_startup", "chat_template")
"""Fields of a model in a file besides an engine's options."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model, and what was set for it alone: options of its engine, its TTL, and whether it is loaded at start.

    A path with a slash that exists becomes absolute: were it gone later, it would be a name on the Hugging Face Hub.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ttl_s: float | None = None
    loads_at_start: bool = False
    chat_template: str | None = None
    is_found: bool = False
    """Whether it was found in a directory, so that it is left out if it cannot be used."""

    def __post_init__(self) -> None:
        if "/" in self.path and (found := env.expand_home(self.path)).exists():
            object.__setattr__(self, "path", str(found.absolute()))


def named_models(given: Sequence[str] | None, served_model_name: str | None) -> dict[str, str]:
    """The models of `--model` by the name that clients use: NAME in NAME=MODEL, else the given text."""
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
    """All models by name: those of `--model`, of `--models-file` and of `--models-dir`.

    InvalidArgumentError and SettingsError if a directory or file cannot be used, or if two models have the same name.
    """
    models: dict[str, ListedModel] = {}
    if given or served_model_name is not None or not (pool.models_dir or pool.models_file):
        models |= {name: ListedModel(path) for name, path in named_models(given, served_model_name).items()}
    if pool.models_file is not None:
        _add(models, _in_file(Path(pool.models_file)), "--models-file")
    if pool.models_dir is not None:
        _add(models, _in_directory(env.expand_home(pool.models_dir)), "--models-dir")
    return models


def _add(models: dict[str, ListedModel], more: Mapping[str, ListedModel], flag: str) -> None:
    if twice := sorted(models.keys() & more.keys()):
        raise InvalidArgumentError(f"Two models are called {twice[0]!r}, at least one of them by {flag}; rename one.")
    models |= more


def _in_directory(directory: Path) -> dict[str, ListedModel]:
    """The models directly in a directory: directories with a config.json, and .gguf files, split ones once."""
    if not directory.is_dir():
        raise InvalidArgumentError(f"--models-dir {directory} is no directory; give one that has models in it.")
    models: dict[str, ListedModel] = {}
    for path in models_below(directory):
        name = path.name
        if path.suffix == ".gguf":
            part = _SHARD.search(path.stem)
            if path.name.startswith("mmproj") or (part is not None and int(part[1]) > 1):
                continue
            name = _SHARD.sub("", path.stem)
        _add(models, {name: ListedModel(str(path), is_found=True)}, "--models-dir")
    if not models:
        raise InvalidArgumentError(
            f"--models-dir {directory} has no models; put directories with a config.json, or .gguf files, into it."
        )
    return models


def _in_file(file: Path) -> dict[str, ListedModel]:
    if not file.is_file():
        raise SettingsError(f"{file} is not a file. Give the path of one with --models-file.")
    content = read_file(file)
    entries = content.get("models")
    if not isinstance(entries, dict) or not entries or len(content) > 1:
        raise SettingsError(f"{file} should have one section, `models`, with a model's options under each name.")
    if any(name is None or not str(name).strip() for name in entries):
        raise SettingsError(f"{file} has a model without a name; write what clients call it before the colon.")
    return {str(name): _entry(entry, f"{file}: {name}") for name, entry in entries.items()}


def _entry(entry: Any, where: str) -> ListedModel:
    """A model of a file. SettingsError for an unknown field, or a value that is not allowed."""
    if isinstance(entry, str):
        entry = {"path": entry}
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(path, str) or not path.strip():
        raise SettingsError(f"{where} should be a model, or a mapping with `path` and options of its engine.")
    names = [item.name for item in fields(EngineConfig) if item.init]
    if unknown := [name for name in entry if name not in (*_OWN_FIELDS, *names)]:
        raise SettingsError(
            f"{where} has an unknown field {unknown[0]!r}{did_you_mean(unknown[0], [*_OWN_FIELDS, *names])}"
        )
    ttl_s, at_start, template = entry.get("ttl"), entry.get("load_on_startup", False), entry.get("chat_template")
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not ttl_s > 0):
        raise SettingsError(f"{where}: ttl should be a number of seconds above 0.")
    if not isinstance(at_start, bool):
        raise SettingsError(f"{where}: load_on_startup should be true or false.")
    if template is not None and not isinstance(template, str):
        raise SettingsError(f"{where}: chat_template should be a file, or the name of one of the model's templates.")
    own = {name: entry[name] for name in names if name in entry}
    try:
        EngineConfig(**own)
    except AetherMindError as error:
        raise SettingsError(f"{where}: {error}") from None
    return ListedModel(path, own, ttl_s, at_start, template)


def model_pool(
    models: Mapping[str, ListedModel],
    engine_options: Mapping[str, Any],
    pool: ModelPoolOptions,
    process: ProcessOptions,
    chat_template: ChosenTemplate | None,
) -> ModelPool:
    """A pool of these models, none of which is loaded yet. `engine_options` are those of all engines.

    Configurations are read, so that a model that cannot be used is an error now, or left out if it was found in a
    directory. Raises the errors of reading a model's configuration.
    """
    from aethermind.engine.process import RestartPolicy, StandbyProcess
    from aethermind.runtime import Runtime
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.pool_entry import ModelSource, engine_inprocess, engine_process
    from aethermind.text.chat_templates import ChosenTemplate

    runtime = Runtime.boot()
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
            template = chat_template if listed.chat_template is None else ChosenTemplate.read(listed.chat_template)
            try:
                max_model_len = _context_length(runtime, listed.path, config)
            except (AetherMindError, OSError) as error:
                if not listed.is_found:
                    raise
                _log.warning("%s is left out: %s", listed.path, error)
                continue
            budgeted = _Budgeted(runtime, listed.path, config)
            open_engine: Callable[..., OpenModel] = engine_inprocess
            if standby is not None:
                open_engine = partial(engine_process, policy=policy, launch=standby.launch)
            open_model = partial(open_engine, name, listed.path, runtime=runtime, chat_template=template)
            yield ModelSource(
                name,
                partial(_opened, open_model, budgeted),
                estimate=budgeted.estimate,
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


def _opened(
    open_model: Callable[..., OpenModel], budgeted: _Budgeted, on_progress: ProgressCallback
) -> AbstractAsyncContextManager[ServedModel]:
    """Open a model with the options that it has by then."""
    return open_model(config=budgeted.config)(on_progress)


class _Budgeted:
    """A model's engine options in a budget of bytes for all models: it gets less memory only if it would not fit alone.

    Mutable.
    """

    def __init__(self, runtime: Runtime, path: str, config: EngineConfig) -> None:
        self.config = replace(config, memory=None)
        self._runtime = runtime
        self._path = Path(path)
        self._limit = config.memory_bytes

    def estimate(self) -> int:
        """The bytes that the model will take."""
        found = estimate_memory(self._runtime, self._path, self.config)
        num_bytes: int = found["total_bytes"] + sum(found["host_parts"].values())
        if self._limit is not None and num_bytes > self._limit:
            self.config = replace(self.config, memory=str(self._limit))
            return self._limit
        return num_bytes


def _context_length(runtime: Runtime, path: str, config: EngineConfig) -> int:
    """The context length as far as a model's configuration and the options tell, in tokens."""
    source = runtime.open_source(path, config.tokenizer)
    raw = source.config()
    model = runtime.architectures.create_model(runtime.architectures.resolve_name(raw, source.path), raw)
    limit: int = model.config.max_position_embeddings
    return limit if config.max_model_len is None else min(limit, config.max_model_len)
