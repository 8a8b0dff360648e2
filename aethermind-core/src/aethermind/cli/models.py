"""`aethermind models` and `aethermind pull`: models that are installed, on disk or on the Hugging Face Hub.

Lists, downloads and deletes them, and estimates the memory that they need on a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from math import prod
from os.path import abspath, isfile, lexists
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind import env
from aethermind.checkpoint.sharded_index import NoWeightsError
from aethermind.cli import console, options
from aethermind.cli.flags import with_flags, with_settings
from aethermind.cli.settings import DeviceOptions, KvCacheOptions, as_arguments
from aethermind.errors import AetherMindError, ConfigError, InvalidArgumentError
from aethermind.first_party import pip_install_command
from aethermind.model.hf_files import require_directory
from aethermind.model.hub import cached_models, delete_cached, find_cached
from aethermind.model.hub_files import HubName

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.model.source import ModelSource
    from aethermind.runtime import Runtime

__all__ = ["EXAMPLES", "PULL_EXAMPLES", "describe_model", "estimate_memory", "models", "models_below", "pull"]

EXAMPLES = console.examples(
    "aethermind models",
    "aethermind models ./Qwen2-0.5B-Instruct ./checkpoints ./model.gguf",
    "aethermind models list",
    "aethermind models show demo --estimate",
    "aethermind models --estimate --device cpu --max-model-len 2048",
    "aethermind models --json",
)


PULL_EXAMPLES = console.examples(
    "aethermind pull Qwen/Qwen2.5-0.5B-Instruct",
    "aethermind pull hf.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
)


@with_settings
def models(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[list|show|rm] [MODEL]...",
            help="Names on the Hugging Face Hub, model directories, .gguf files, or directories that hold them; "
            "without any, the models that are installed or downloaded. rm deletes downloaded models.",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Add the memory that each model needs on --device.")
    ] = False,
    *,
    device_options: DeviceOptions,
    cache: KvCacheOptions,
    as_json: options.AsJson = False,
) -> None:
    """List models: installed, on disk, or downloaded.

    Nothing is downloaded; `aethermind pull` does that. Weights are not read.

    A model that cannot be used is listed with the reason; options that none of the models can have are an error.
    --estimate adds the memory that each model takes on --device
    with the other options, for as many requests at once as `LLM` plans for by default, and what would fit where that
    is more than there is. Of a model that is on the Hub only, it reads the headers.
    """
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.parts import check_names
    from aethermind.runtime import Runtime

    action, words = _split_action(directories or [])
    if action == "rm":
        _delete(words)
        return
    config = EngineConfig(**as_arguments(device_options, cache), fallback="allow")
    runtime = Runtime.boot()
    check_names(runtime, config)
    if estimate:
        runtime.devices.select(device_options.device)
    with TemporaryDirectory(prefix="aethermind-headers-") as headers:
        records = [
            describe_model(runtime, name, path)
            for name, path in _find(runtime, words, Path(headers) if estimate else None)
        ]
        if estimate:
            _add_estimates([record for record in records if record["context_length"] is not None], runtime, config)
        for record in records:
            if record["path"].startswith(headers):
                record["path"] = _NOT_DOWNLOADED
    if as_json:
        console.print_json({"models": records})
    elif records and action == "show":
        _print_details(records)
    elif records:
        _print_records(records)
    else:
        print(f"No models are installed. Run `{pip_install_command('aethermind-qwen2')}`, or name a directory.")


def pull(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:QUANTIZATION for one .gguf file of a repository.",
        ),
    ],
    adapter: Annotated[bool, typer.Option("--adapter", help="They are LoRA adapters.")] = False,
) -> None:
    """Download models of the Hugging Face Hub.

    They go to the cache that other programs share, and their paths are printed. Files that are there already are not
    fetched again. Other commands download a model at its first use, but do not look for newer revisions.
    """
    from aethermind.model.hub import download

    names = [_hub_name(text) for text in models]
    for name in names:
        print(download(name, "adapter" if adapter else "model"))


def _hub_name(text: str) -> HubName:
    name = HubName.parse(text)
    if name is None:
        raise InvalidArgumentError(
            f"{text!r} is not a name on the Hugging Face Hub. Write ORG/NAME, or ORG/NAME:Q4_K_M for a .gguf file."
        )
    return name


def describe_model(runtime: Runtime, name: str, path: Path) -> dict[str, Any]:
    """Describe a model by its files, for JSON; `error` is the reason why it cannot be used, or None.

    `parameters` is the number of values in the checkpoint, `dtype` their most frequent dtype, and `size_bytes` the size
    of the checkpoint's files.
    """
    record: dict[str, Any] = {"name": name, "path": str(path), **dict.fromkeys(_FIELDS), "error": None}
    try:
        source = runtime.open_source(path)
        record.update(_config_fields(runtime, source, record))
        record.update(_weight_fields(source))
    except NoWeightsError as error:
        record["error"] = f"{error.found}. Put the model's weights there."
    except AetherMindError as error:
        record["error"] = with_flags(str(error))
    except OSError as error:
        record["error"] = f"{error.filename} cannot be read: {error.strerror}."
    return record


def estimate_memory(runtime: Runtime, path: Path, config: EngineConfig) -> dict[str, Any]:
    """Estimate the memory in bytes that a model takes (see `MemoryEstimate`); if it does not fit, add options that fit.

    `parts` are in device memory, `host_parts` in host memory besides. `weight_bytes`, `kv_cache_bytes` and
    `arena_bytes` (memory of intermediate values) equal those of `ModelInfo` once the model is loaded. `available_bytes`
    is the memory that may be used, None if it is unknown.
    """
    from aethermind.engine.loading.loader import compile_model
    from aethermind.engine.loading.memory_check import fitting_options
    from aethermind.engine.loading.memory_estimate import MemoryPlanner, memory_limit
    from aethermind.engine.loading.weight_formats import format_uses
    from aethermind.graph.constants import constant_bytes

    compiled = compile_model(runtime, path, config)
    with closing(compiled.open_device.backend) as backend:
        spec = compiled.cache_spec
        states = spec.num_slots * spec.bytes_per_slot
        # Estimate weights as read from files, also those that are not there yet: dummies take other memory.
        as_files = replace(compiled, config=replace(compiled.config, load_format="auto"))
        total = backend.devices.properties(compiled.open_device.device.index).total_memory_bytes
        estimate, limit = MemoryPlanner(as_files).estimate(), memory_limit(compiled) or total or None
        fits = limit is None or estimate.device_bytes <= limit
        return {
            "device": str(compiled.open_device.device),
            "dtype": compiled.dtype.label,
            "weight_formats": [console.weight_format_record(use) for use in format_uses(compiled)],
            "max_model_len": compiled.max_model_len,
            "num_kv_blocks": compiled.num_kv_blocks,
            "weight_bytes": constant_bytes(compiled.step.plan, compiled.parameter_types),
            "kv_cache_bytes": compiled.num_kv_blocks * spec.bytes_per_block + states,
            "state_bytes": states,
            "arena_bytes": compiled.step.memory.arena_bytes,
            "parts": dict(estimate.device),
            "host_parts": dict(estimate.host),
            "mapped_bytes": estimate.mapped_bytes,
            "total_bytes": estimate.device_bytes,
            "available_bytes": limit,
            "fits": fits,
            "fits_with": [] if fits or limit is None else fitting_options(runtime, path, as_files, config, limit),
        }


_NOT_DOWNLOADED = "not downloaded"
_ACTIONS = ("list", "show", "rm")
_FIELDS = ("architecture", "parameters", "size_bytes", "dtype", "format", "context_length")


def _config_fields(runtime: Runtime, source: ModelSource, record: dict[str, Any]) -> dict[str, Any]:
    raw = source.config()
    name = record["architecture"] = runtime.architectures.resolve_name(raw, source.path)
    return {"context_length": runtime.architectures.create_model(name, raw).config.max_position_embeddings}


def _weight_fields(source: ModelSource) -> dict[str, Any]:
    checkpoint = source.weights()
    counts: Counter[str] = Counter()
    for info in map(checkpoint.info, checkpoint.names):
        counts[info.kind] += prod(info.shape)
    kind = checkpoint.paths[0].suffix.removeprefix(".") if checkpoint.paths else "empty"
    num_files = len(checkpoint.paths)
    return {
        "parameters": counts.total(),
        "size_bytes": sum(file.stat().st_size for file in checkpoint.paths),
        "dtype": counts.most_common(1)[0][0] if counts else None,
        "format": kind if num_files == 1 else f"{kind} ×{num_files}",
    }


def _find(runtime: Runtime, directories: list[str], headers: Path | None) -> list[tuple[str, Path]]:
    """Return the names and paths of models; a directory without config.json is replaced by the models directly in it.

    If a model was not downloaded, its headers are fetched into the folder `headers`.
    """
    if not directories:
        installed = [(name, runtime.models.locate(name)) for name in runtime.models.names()]
        return [*installed, *((model.name, model.path) for model in cached_models())]
    found: list[tuple[str, Path]] = []
    for text in directories:
        if not text:
            raise InvalidArgumentError("A path is empty; name a model directory, a .gguf file or an installed model.")
        directory = env.expand_home(text)
        name = None if lexists(directory) or text in runtime.models.names() else HubName.parse(text)
        if name is not None:
            found.append((str(name), _cached(name, None if headers is None else headers / str(len(found)))))
            continue
        if not directory.exists():
            directory = runtime.models.locate(text)
            if not lexists(directory):  # a dangling link is listed with an error
                require_directory(directory)
        contained = [] if isfile(directory / "config.json") else models_below(directory)
        found += [(Path(abspath(path)).name, path) for path in contained or [directory]]
    return found


def _cached(name: HubName, headers: Path | None) -> Path:
    path = find_cached(name)
    if path is None and headers is not None:
        from aethermind.model.hub_headers import fetch_headers

        headers.mkdir()
        path = fetch_headers(name, headers)
    if path is None:
        raise ConfigError(
            f"{name} is no path and was not downloaded. Run `aethermind pull {name}`, add --estimate, which reads only "
            "headers, or correct it."
        )
    return path


def _split_action(words: list[str]) -> tuple[str, list[str]]:
    """Split arguments into the action (by default `list`) and models; a word that is an existing path is a model."""
    if not words or words[0] not in _ACTIONS or lexists(words[0]):
        return "list", words
    if words[0] != "list" and len(words) == 1:
        raise InvalidArgumentError(f"Say which model, as in `aethermind models {words[0]} ORG/NAME`.")
    return words[0], words[1:]


def _delete(words: list[str]) -> None:
    """Delete downloaded models; if one of the names is wrong, delete none."""
    names = {word: HubName.parse(word) for word in words}
    if wrong := next((word for word, name in names.items() if name is None or lexists(word)), None):
        raise InvalidArgumentError(
            f"{wrong!r} was not downloaded by its name, so it is not deleted here. Name one of `aethermind models "
            "list`, in the form ORG/NAME."
        )
    for name in filter(None, names.values()):
        print(f"Deleted {name}: {console.quantity(delete_cached(name), 'B')}")


def models_below(directory: Path) -> list[Path]:
    """Return the model directories and .gguf files directly in a directory."""
    return sorted(
        [*(config.parent for config in directory.glob("*/config.json")), *filter(isfile, directory.glob("*.gguf"))]
    )


def _add_estimates(records: Sequence[dict[str, Any]], runtime: Runtime, config: EngineConfig) -> None:
    """Add the estimate of each model, or the reason why there is none. InvalidArgumentError for options that none of
    them can have.
    """
    refused: list[InvalidArgumentError] = []
    for record in records:
        # A model without weights is compiled as with dummies; the estimate needs its configuration only.
        options = config if record["error"] is None else replace(config, load_format="dummy")
        try:
            record["estimate"] = estimate_memory(runtime, Path(record["path"]), options)
        except AetherMindError as error:
            record["error"] = record["error"] or with_flags(str(error))
            if isinstance(error, InvalidArgumentError):
                refused.append(error)
    if refused and len(refused) == len(records):
        raise refused[0]


def _print_details(records: list[dict[str, Any]]) -> None:
    """Print the fields of each model, one per line."""
    for record in records:
        hidden = ("estimate", "size_bytes")
        shown = {key: value for key, value in record.items() if key not in hidden and value is not None}
        if record["size_bytes"] is not None:
            shown["size"] = console.quantity(record["size_bytes"], "B")
        print(console.columns([(key.replace("_", " "), str(value)) for key, value in shown.items()], indent=""))
        if "estimate" in record:
            print(f"{record['name']} {_describe_estimate(record['estimate'])}")


def _print_records(records: list[dict[str, Any]]) -> None:
    rows: list[tuple[str, ...]] = [("name", "parameters", "size", "dtype", "format", "context", "architecture", "path")]
    rows += [_row(record) for record in records]
    print(console.columns(rows, indent=""))
    for record in records:
        if "estimate" in record:
            print(f"\n{record['name']} {_describe_estimate(record['estimate'])}")


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    parameters, size = record["parameters"], record["size_bytes"]
    return (
        record["name"],
        "-" if parameters is None else console.quantity(parameters, "").rstrip(),
        "-" if size is None else console.quantity(size, "B"),
        *(str(record[name] or "-") for name in ("dtype", "format", "context_length", "architecture", "path")),
        record["error"] or "",
    )


def _describe_estimate(estimate: dict[str, Any]) -> str:
    from aethermind.engine.loading.memory_check import PART_TITLES

    available = estimate["available_bytes"]
    budget = f" of {console.quantity(available, 'B')}" if available else ""
    if not estimate["fits"]:
        fitting = ", or with ".join(estimate["fits_with"])
        advice = f" (it fits with {fitting})" if fitting else ""
        budget = f", more than the {console.quantity(available, 'B')} that may be used{advice},"
    parts = {PART_TITLES.get(name, name): nbytes for name, nbytes in estimate["parts"].items()}
    listed = ", ".join(f"{name} {console.quantity(nbytes, 'B')}" for name, nbytes in parts.items())
    formats = f"; {console.describe_weight_formats(estimate['weight_formats'])}" if estimate["weight_formats"] else ""
    host_bytes = sum(estimate["host_parts"].values())
    host_memory = f"; beside it {console.quantity(host_bytes, 'B')} of host memory" if host_bytes else ""
    return (
        f"takes {console.quantity(estimate['total_bytes'], 'B')}{budget} on {estimate['device']} in "
        f"{estimate['dtype']}: "
        f"{listed} ({estimate['num_kv_blocks']} KV blocks, contexts of {estimate['max_model_len']} tokens{formats})"
        f"{host_memory}"
    )
