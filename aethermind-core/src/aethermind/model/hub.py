"""Models of the Hugging Face Hub: found in the cache that all programs share, or downloaded into it.

The client is `huggingface_hub`, which is imported when a name of the Hub is first used. It reads HF_HOME, HF_ENDPOINT,
HF_TOKEN and HF_HUB_OFFLINE, and draws progress bars on a terminal. A model that is in the cache is used without a
request. Layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os.path import lexists
from pathlib import Path
from typing import Any, NamedTuple

from aethermind import env
from aethermind.atomic_file import atomic_write
from aethermind.errors import ConfigError
from aethermind.first_party import pip_install_command
from aethermind.log import get_logger
from aethermind.model.hub_errors import explain_failure, is_unreachable
from aethermind.model.hub_files import INDEX, HubName, RepoKind, Selection, quantization_of, select_files

__all__ = [
    "CachedModel",
    "Download",
    "RepoFiles",
    "begin_download",
    "cached_models",
    "choose_files",
    "delete_cached",
    "download",
    "explained",
    "find_cached",
    "hub_name",
    "local_path",
    "title_of",
]

logger = get_logger(__name__)

_TIMEOUT_S = 10.0
"""The time limit of a request for a list of files or a file's properties."""

_MODELSCOPE = re.compile(
    r"(?:(?:https://)?(?:www\.)?modelscope\.(?:cn|ai)/(?:models/)?|(?:modelscope|ms)://)([\w.-]+/([\w.-]+))(?:[@:/?].*)?",
    re.ASCII,
)

_MAX_PARALLEL = 8
"""The number of small files that are fetched at once."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A complete model in the cache: its name on the Hub, and its directory or .gguf file.

    The name of a GGUF model includes its quantisation.
    """

    name: str
    path: Path


def local_path(text: str, kind: RepoKind = "model") -> Path:
    """Return the path of a model, tokenizer or adapter that is given as a path or as a name on the Hub.

    A path that exists takes precedence. A name is looked up in the cache, and downloaded if it is not there. A text
    that is not a name is returned as a path, whether it exists or not. ConfigError says why a download failed, and how
    a model of ModelScope is downloaded, whose site has an API of its own.
    """
    path = env.expand_home(text)
    name = hub_name(text)
    if name is None:
        if (named := _MODELSCOPE.fullmatch(text)) is not None and not lexists(path):
            raise ConfigError(
                f"Models of ModelScope are downloaded by its own client: run `pip install modelscope-hub` and "
                f"`modelscope download {named[1]} --local-dir {named[2]}`, and give ./{named[2]}."
            )
        return path
    return find_cached(name, kind) or download(name, kind)


def hub_name(text: str) -> HubName | None:
    """The name of the Hub that a text is; None for a path, which always wins if it exists."""
    return None if lexists(env.expand_home(text)) else HubName.parse(text)


def title_of(path: Path) -> str:
    """Return the name on the Hub of a model in the cache; for other paths the path itself."""
    parts = path.parts
    if "snapshots" in parts and (folder := parts[parts.index("snapshots") - 1]).startswith("models--"):
        return folder.removeprefix("models--").replace("--", "/")
    return str(path)


def find_cached(name: HubName, kind: RepoKind = "model", *, is_partial_enough: bool = False) -> Path | None:
    """Find a model in the cache, without a request; None unless all of its files are there.

    With `is_partial_enough` weights and config.json suffice, because the cache does not know whether the repository has
    more files.
    """
    snapshot = _snapshot(_repo_folder(name), name.revision or "main")
    if snapshot is None:
        return None
    try:
        chosen = select_files(name, _files_below(snapshot), kind, _shards(snapshot / INDEX))
    except ConfigError:  # the quantisation is not in the cache
        return None
    is_enough = is_partial_enough and bool(chosen.weights) and "config.json" in chosen.texts
    return _model_path(snapshot, chosen) if chosen.is_complete or is_enough else None


class RepoFiles(NamedTuple):
    """A repository's newest commit, the sizes of its files in bytes, and the files that are needed."""

    commit: str
    sizes: Mapping[str, int]
    chosen: Selection


def choose_files(name: HubName, kind: RepoKind = "model") -> RepoFiles:
    """Ask the Hub for the files of a model, and choose those that are needed.

    ConfigError for files that are no model; other errors are the client's, which `explained` turns into ConfigErrors.
    """
    hub = _client()
    info = hub.HfApi().model_info(name.repo, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_S)
    if info.id != name.repo:
        logger.warning("%s is called %s now", name.repo, info.id)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    shards: Sequence[str] = ()
    if kind == "model" and INDEX in sizes and not name.quantization:
        shards = _shards(Path(hub.hf_hub_download(name.repo, INDEX, revision=info.sha, etag_timeout=_TIMEOUT_S)))
    chosen = select_files(name, sizes, kind, shards)
    _check_is_model(name, chosen, kind, sizes)
    return RepoFiles(info.sha, sizes, chosen)


class Download:
    """The newest revision of a repository, on its way into the cache. Errors are the client's (`explained`).

    Sizes are shown and disk space is checked at once: ConfigError where it does not suffice.
    """

    def __init__(self, name: HubName, files: RepoFiles) -> None:
        self.name, self.files = name, files
        self.snapshot = _repo_folder(name) / "snapshots" / files.commit
        self._fetch = partial(_client().hf_hub_download, name.repo, revision=files.commit, etag_timeout=_TIMEOUT_S)
        missing = {path: files.sizes.get(path, 0) for path in files.chosen.files if not self.has(path)}
        if missing:
            _check_space(name, missing)
            _announce(name, missing)

    @property
    def path(self) -> Path:
        """The model's directory or first .gguf file, which may not be there yet."""
        return _model_path(self.snapshot, self.files.chosen)

    def has(self, path: str) -> bool:
        """Whether a file is in the cache, whole."""
        return (self.snapshot / path).exists()

    def fetch_texts(self) -> None:
        """Fetch the configuration, tokenizer and templates."""
        with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
            list(pool.map(self._fetch, self.files.chosen.texts))

    def fetch(self, path: str) -> None:
        """Fetch one file, unless it is in the cache."""
        self._fetch(path)

    def fetch_weights(self) -> Path:
        """Fetch the weights, and return the model's directory or .gguf file."""
        for path in self.files.chosen.weights:
            self.fetch(path)
        return self.finish()

    def finish(self) -> Path:
        """Note the revision, now that all files are there, and return the model's directory or .gguf file."""
        revision, commit = self.name.revision or "main", self.files.commit
        if revision != commit:
            reference = _repo_folder(self.name) / "refs" / revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(reference, [commit.encode()])
        return self.path


def begin_download(name: HubName, kind: RepoKind = "model") -> Download | Path:
    """Begin to download what is missing of a model's newest revision. A path where the Hub cannot be reached, and the
    cache has the weights and config.json. Errors are those of `choose_files` and `Download`.
    """
    try:
        files = choose_files(name, kind)
    except Exception as error:
        found = find_cached(name, kind, is_partial_enough=True) if is_unreachable(error) else None
        if found is None:
            raise
        logger.warning("%s is used as it is in the cache: the Hugging Face Hub cannot be reached", name)
        return found
    return Download(name, files)


def download(name: HubName, kind: RepoKind = "model") -> Path:
    """Download what is missing of a model's newest revision, and return its directory or .gguf file.

    Files that are complete are not fetched again. ConfigError says in one sentence why a model cannot be had.
    """
    with explained(name):
        begun = begin_download(name, kind)
        if isinstance(begun, Path):
            return begun
        begun.fetch_texts()
        return begun.fetch_weights()


def cached_models() -> list[CachedModel]:
    """The whole models in the cache, by name; each quantisation of a GGUF repository is one of its own.

    None where `huggingface_hub` is not installed.
    """
    try:
        root = _cache_root()
    except ConfigError:
        return []
    found: list[CachedModel] = []
    for folder in sorted(root.glob("models--*--*")) if root.is_dir() else ():
        repo = HubName.parse(folder.name.removeprefix("models--").replace("--", "/", 1))
        snapshot = None if repo is None else _snapshot(folder, "main")
        if repo is None or snapshot is None:
            continue
        quantizations = {quantization_of(path) for path in _files_below(snapshot) if path.endswith(".gguf")}
        names = [repo, *(HubName(repo.repo, None, each) for each in sorted(filter(None, quantizations)))]
        paths = {path: str(name) for name in names if (path := find_cached(name)) is not None}
        found += [CachedModel(name, path) for path, name in paths.items()]
    return found


def delete_cached(name: HubName) -> int:
    """Delete a model, or the quantisation or revision in its name, from the cache; return the number of freed bytes.

    ConfigError if it is not in the cache.
    """
    folder = _repo_folder(name)
    snapshots = {path.name for path in (folder / "snapshots").glob("*")} if folder.is_dir() else set()
    if name.revision is not None or name.quantization is not None:
        snapshot = _snapshot(folder, name.revision or "main")
        snapshots &= {snapshot.name} if snapshot is not None else set()
    if not snapshots:
        raise ConfigError(f"{name} is not in the cache; `aethermind models list` shows what is.")
    if name.quantization is None:
        strategy = _client().scan_cache_dir(_cache_root()).delete_revisions(*snapshots)
        strategy.execute()
        return int(strategy.expected_freed_size)
    snapshot = folder / "snapshots" / snapshots.pop()
    chosen = select_files(name, _files_below(snapshot))
    blobs = {(snapshot / path).resolve() for path in chosen.weights}
    freed = sum(blob.stat().st_size for blob in blobs)
    for path in (*(snapshot / path for path in chosen.weights), *blobs):
        path.unlink(missing_ok=True)
    return freed


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(
            "Names of the Hugging Face Hub need huggingface_hub: run "
            f"`{pip_install_command('aethermind[hub]')}`, or give a path."
        ) from None
    return huggingface_hub


def _cache_root() -> Path:
    _client()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _repo_folder(name: HubName) -> Path:
    return _cache_root() / f"models--{name.repo.replace('/', '--')}"


def _snapshot(folder: Path, revision: str) -> Path | None:
    """Return the directory of a branch, tag or commit in a repository's folder; None if there is none."""
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _files_below(snapshot: Path) -> list[str]:
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]


def _shards(index: Path) -> Sequence[str]:
    """Return the files that an index lists; none if it cannot be read, which the reader of weights reports later."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({name for name in listed if isinstance(name, str) and "/" not in name})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _model_path(snapshot: Path, chosen: Selection) -> Path:
    return snapshot if chosen.gguf is None else snapshot / chosen.gguf


def _check_is_model(name: HubName, chosen: Selection, kind: RepoKind, paths: Collection[str]) -> None:
    if kind == "adapter" and not chosen.is_complete:
        raise ConfigError(f"{name} is no LoRA adapter: it has no adapter_config.json with adapter_model.safetensors.")
    if kind == "model" and not chosen.weights:
        is_adapter = "adapter_config.json" in paths
        advice = "It is a LoRA adapter: name its model, and this as adapters." if is_adapter else "Name another one."
        raise ConfigError(f"{name} has no weights that can be read (safetensors, GGUF or PyTorch's). {advice}")


def _check_space(name: HubName, missing: Mapping[str, int]) -> None:
    root = _cache_root()
    place = next(folder for folder in (root, *root.parents) if folder.is_dir())
    needed, free = sum(missing.values()), shutil.disk_usage(place).free
    if needed > free:
        raise ConfigError(
            f"{name} needs {_size(needed)} in {root}, where {_size(free)} are free. Free some, or set HF_HOME to a "
            "folder on another disk."
        )


def _announce(name: HubName, missing: Mapping[str, int]) -> None:
    """Print what is downloaded on a terminal, else log it."""
    files = f"{len(missing)} file{'s' if len(missing) > 1 else ''}"
    text = f"Downloading {name}: {files}, {_size(sum(missing.values()))}, to {_cache_root()}"
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)
    else:
        logger.info("%s", text)


def _size(num_bytes: int) -> str:
    factor, unit = next(((f, u) for f, u in ((1e9, "GB"), (1e6, "MB")) if num_bytes >= f), (1e3, "kB"))
    return f"{num_bytes / factor:.2f} {unit}"


@contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Turn the client's errors within the `with` block into a ConfigError of one sentence."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        sentence = explain_failure(name, error)
        if sentence is None:
            raise
        raise ConfigError(sentence) from error
