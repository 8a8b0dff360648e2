"""The second start of a model maps what the first one packed, and computes the same bits."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.hub_server import HubServer, Repo

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.observation.profiler import measure_memory
from aethermind.engine.weight_cache import WeightCache, WeightFolder

PROMPT = {"prompt_token_ids": [*range(20, 60)]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights are kept, small ones as well, whatever pages they come on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(WeightCache, "min_bytes", 1)
    monkeypatch.setattr(WeightFolder, "needs_huge_pages", False)
    return tmp_path / "cache" / "aethermind" / "weights"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Runtime.boot().open_source("demo").path, tmp_path / "model"))


@contextmanager
def opened(model: Path | str, **options: Any) -> Iterator[LLM]:
    """A model whose weights have been kept once it is closed."""
    with closing(LLM(model, device="cpu", num_kv_blocks=16, max_num_seqs=1, **options)) as llm:
        yield llm
    for thread in threading.enumerate():
        if thread.name == "aethermind-keep-weights":
            thread.join()


def constants_of(llm: LLM) -> Any:
    return llm.engine.runner.constants


def computed_by(llm: LLM) -> tuple[list[int], bytes]:
    """An answer, and the logits of its last step."""
    (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    return list(output.outputs[0].token_ids), llm.engine.runner.logits(1).tobytes()


@pytest.mark.parametrize(
    "options",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}],
    ids=lambda options: next(iter(options.values())),
)
def test_the_next_start_maps_the_cached_file(folder: Path, model: Path, options: dict[str, str]) -> None:
    with opened(model, weight_cache=0, **options) as llm:
        wanted = computed_by(llm)
    assert not folder.exists()
    with opened(model, **options) as llm:
        assert constants_of(llm).found_bytes == 0
        assert computed_by(llm) == wanted
        packed = {
            key: constants_of(llm).tensor(key).numpy().tobytes() for key in llm.engine.compiled.step.plan.constants
        }
    with opened(model, **options) as llm:
        constants = constants_of(llm)
        assert constants.found_bytes == constants.packed_bytes > 0
        assert {key: constants.tensor(key).numpy().tobytes() for key in packed} == packed
        assert computed_by(llm) == wanted
        use = measure_memory("loaded", llm.engine.compiled, llm.engine.runner)
        assert use.packed_weights == constants.found_bytes
    assert len([*folder.iterdir()]) == 1


@pytest.mark.usefixtures("folder")
def test_what_is_packed_while_it_is_downloaded_is_kept(hub_server: HubServer) -> None:
    demo = Runtime.boot().open_source("demo").path
    hub_server.repos["org/demo"] = Repo({path.name: path.read_bytes() for path in demo.iterdir() if path.is_file()})
    with opened("org/demo") as llm:
        wanted = computed_by(llm)
    with opened("org/demo") as llm:
        assert constants_of(llm).found_bytes == constants_of(llm).packed_bytes > 0
        assert computed_by(llm) == wanted


def test_a_cache_of_another_packing_is_not_used(folder: Path, model: Path) -> None:
    for num_files, options in enumerate(
        [{"dtype": "float32"}, {"quantization": "int4"}, {"lm_head_quantization": "int4"}], 1
    ):
        with opened(model, **options) as llm:
            assert constants_of(llm).found_bytes == 0
        assert len([*folder.iterdir()]) == num_files


@pytest.mark.usefixtures("folder")
def test_another_checkpoint_in_the_same_place_is_packed(model: Path) -> None:
    with opened(model) as llm:
        before = computed_by(llm)
    (file,) = model.glob("*.safetensors")
    status = file.stat()
    save_file({name: np.negative(array) for name, array in load_file(file).items()}, file, {"format": "pt"})
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    with opened(model) as llm:
        assert constants_of(llm).found_bytes == 0
        after = computed_by(llm)
    with opened(model, weight_cache=0) as llm:
        assert computed_by(llm) == after != before


def test_a_checkpoint_that_changes_during_loading_is_not_cached(folder: Path, model: Path) -> None:
    (file,) = model.glob("*.safetensors")
    beside = Path(shutil.copy(file, model / "new"))
    LLM(model, device="cpu", on_progress=lambda done, total: beside.exists() and beside.replace(file)).close()
    for thread in threading.enumerate():
        if thread.name == "aethermind-keep-weights":
            thread.join()
    assert not folder.exists()


def test_a_damaged_cache_file_is_reported_and_rewritten(
    folder: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(model) as llm:
        wanted = computed_by(llm)
    (file,) = folder.iterdir()
    size = file.stat().st_size
    os.truncate(file, size // 2)
    with caplog.at_level(logging.WARNING, "aethermind"), opened(model) as llm:
        assert constants_of(llm).found_bytes == 0
        assert computed_by(llm) == wanted
    (warning,) = (record for record in caplog.records if record.name.startswith("aethermind.engine.weight_cache"))
    assert warning.levelname == "WARNING"
    assert "damaged" in warning.getMessage()
    assert file.stat().st_size == size


def test_an_unwritable_cache_directory_is_no_error(model: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "aethermind"), opened(model) as llm:
        assert constants_of(llm).found_bytes == 0
    assert not [record for record in caplog.records if record.name.startswith("aethermind.engine.weight_cache")]


PROGRAM = """
import sys
from aethermind import LLM, SamplingParams
from aethermind.engine.weight_cache import WeightCache, WeightFolder
WeightCache.min_bytes, WeightFolder.needs_huge_pages = 1, False
llm = LLM(sys.argv[1], device="cpu", num_kv_blocks=16, max_num_seqs=1)
params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
output, = llm.generate({"prompt_token_ids": [*range(20, 60)]}, params)
print(list(output.outputs[0].token_ids))
"""


def test_concurrent_starts_compute_the_same_and_write_one_file(folder: Path, model: Path) -> None:
    """Each ends at once: what it writes is finished at its end."""
    command = [sys.executable, "-c", PROGRAM, str(model)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len([*folder.iterdir()]) == 1
    with opened(model) as llm:
        assert constants_of(llm).found_bytes > 0
        assert answers == [f"{computed_by(llm)[0]}\n"] * 2
