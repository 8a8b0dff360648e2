"""Packed weights of one model, found in a folder, or written there beside what the process does."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.engine.weight_cache.folder import WeightFolder
from aethermind.engine.weight_cache.idle_turns import IdleTurns
from aethermind.engine.weight_cache.key import cache_key, describe_files
from aethermind.errors import CheckpointError
from aethermind.hal.mapped import bring_mapped_pages
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.graph.activity import Activity
    from aethermind.graph.constants import PackedConstant
    from aethermind.hal.tensor import Tensor

__all__ = ["WeightCache"]

logger = get_logger(__name__)

_LOWEST_PRIORITY = 19
_LARGE_BYTES = 1 << 30
"""So much disk space is worth a word."""


class WeightCache:
    """Implements `graph.constants.KeptConstants` for weights whose packs name their build."""

    least_bytes = 64 << 20
    """Fewer are packed as fast as they are found."""

    def __init__(self, planned: PlannedModel, folder: WeightFolder) -> None:
        """Made before the model's files are opened, so that these are what it knows of them, or newer.

        OSError where one of the files has gone, CheckpointError where they are not a model's.
        """
        self._planned = planned
        self._folder = folder
        self._files = describe_files(planned)
        self._writing: list[tuple[threading.Thread, IdleTurns]] = []

    @classmethod
    def of(cls, planned: PlannedModel) -> WeightCache | None:
        """That of a model in the user's cache folder; None where the configuration wants none, for random weights, and
        for devices that do not compute on the host's memory.
        """
        config = planned.config
        is_in_place = planned.open_device.backend.capabilities.is_host_accessible
        if not config.weight_cache or config.load_format == "dummy" or not is_in_place:
            return None
        folder = WeightFolder(env.cache_directory() / "weights", int(config.weight_cache * 2**30))
        try:
            return cls(planned, folder)
        except OSError:
            return None  # who opens the files says it better

    def find(self, wanted: Mapping[str, PackedConstant]) -> Mapping[str, Any]:
        """See `KeptConstants`; the file's pages are brought in meanwhile. A broken file is a warning."""
        lasting = self._lasting(wanted)
        if not lasting:
            return {}
        key = cache_key(self._planned, self._files, lasting)
        try:
            found = self._folder.find(key, {key: one.nbytes for key, one in lasting.items()})
        except CheckpointError as error:
            logger.warning("Packed weights are made again, for those that were kept are damaged: %s", error)
            return {}
        if found:
            bring_mapped_pages(next(iter(found.values())))
        return found

    def keep(self, wanted: Mapping[str, PackedConstant], packed: Mapping[str, Tensor], activity: Activity) -> None:
        """See `KeptConstants`. A thread of the lowest priority writes, a piece of 2 MiB at a time, while the model runs
        nothing, and a piece now and then where it always runs something (see `IdleTurns`). What is left is written when
        the model is closed or dropped, or the program ends, unless that is interrupted.
        """
        lasting = self._lasting(wanted)
        if not lasting:
            return
        turns = IdleTurns(activity)
        planned, files, folder = self._planned, self._files, self._folder

        def write() -> None:
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
            try:
                is_same = describe_files(planned) == files
                key = cache_key(planned, files, lasting)
                if is_same and not turns.is_over() and not folder.has(key):
                    arrays = {name: packed[name].numpy() for name in lasting}
                    model = str(planned.source.path)
                    if folder.write(key, arrays, turns.is_over, model=model):
                        _announce(folder, model, sum(one.nbytes for one in arrays.values()))
            except (OSError, CheckpointError) as error:
                logger.info("packed weights are not kept for the next start: %s", error)

        thread = threading.Thread(target=write, name="aethermind-keep-weights", daemon=True)
        thread.start()
        atexit.register(_finish_quietly, thread, turns)
        self._writing.append((thread, turns))
        weakref.finalize(self, turns.hurry).atexit = False  # the thread keeps the weights of a model that was dropped

    def finish(self) -> None:
        """See `KeptConstants`; KeyboardInterrupt leaves out the rest."""
        while self._writing:
            _finish(*self._writing.pop())

    def _lasting(self, wanted: Mapping[str, PackedConstant]) -> dict[str, PackedConstant]:
        """Those that another process would pack to the same bytes, if they are worth it."""
        lasting = {
            key: one
            for key, one in wanted.items()
            if one.pack.build is not None and one.constant.parameter not in self._planned.computed
        }
        return lasting if sum(one.nbytes for one in lasting.values()) >= self.least_bytes else {}


def _finish(thread: threading.Thread, turns: IdleTurns) -> None:
    turns.hurry()
    try:
        thread.join()
    except KeyboardInterrupt:
        turns.give_up()
        thread.join()
        raise


def _finish_quietly(thread: threading.Thread, turns: IdleTurns) -> None:
    with suppress(KeyboardInterrupt):
        _finish(thread, turns)


def _announce(folder: WeightFolder, model: str, nbytes: int) -> None:
    """Say once that much disk space was taken: the next start finds the file and writes none."""
    if nbytes >= _LARGE_BYTES:
        logger.warning(
            "The packed weights of %s are kept for faster starts: %.1f GB in %s. `aethermind cache list` shows "
            "them; weight_cache=0 (--weight-cache 0) keeps none.",
            model,
            nbytes / 1e9,
            folder.path,
        )
