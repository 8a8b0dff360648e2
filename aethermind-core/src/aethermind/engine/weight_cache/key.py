"""What packed weights depend on, in a few digits: whoever agrees on it may read the bytes that another one packed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import aethermind
from aethermind import checkpoint, ops

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.graph.constants import PackedConstant

__all__ = ["cache_key", "describe_files"]


def describe_files(planned: PlannedModel) -> list[Any]:
    """A model's files and the code that reads them, by what the system says of them: name, inode, size, and the times
    of modification and of change. To read them takes longer than packing; a copy elsewhere is another file.

    OSError where one has gone.
    """
    source = planned.source
    code = [*_files_of(type(planned.model)), *_files_in(checkpoint), *_files_in(ops)]
    files = [(path, os.stat(path)) for path in (*source.weights().paths, *sorted(source.path.glob("*.json")), *code)]
    return [[path.name, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for path, one in files]


def cache_key(planned: PlannedModel, files: list[Any], wanted: Mapping[str, PackedConstant]) -> str:
    """32 hexadecimal digits over the model's files and what is made of them."""
    described = {
        "version": aethermind.__version__,
        "files": files,
        "rank": None if planned.parallel is None else repr(planned.parallel.share),
        "constants": {
            key: [*one.constant[:2], repr(one.constant.weight_format), str(one.type), one.nbytes, one.pack.build]
            for key, one in sorted(wanted.items())
        },
    }
    return sha256(json.dumps(described).encode()).hexdigest()[:32]


def _files_in(package: ModuleType) -> list[Path]:
    """What reads tensors, and what converts them."""
    return sorted(Path(package.__path__[0]).glob("*.py"))


def _files_of(model: type) -> list[Path]:
    """The code of a model: it says which of a checkpoint's tensors are its own, perhaps split or turned."""
    modules = dict.fromkeys(sys.modules.get(base.__module__) for base in model.__mro__)
    return [Path(file) for module in modules if (file := getattr(module, "__file__", None)) is not None]
