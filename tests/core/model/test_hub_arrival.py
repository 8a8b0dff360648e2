"""A model of the Hub is compiled and packed while its files of weights are downloaded one after the other.

Of a GGUF model the header, which is at the beginning of the file, is its configuration and tokenizer, too.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import gguf
import ml_dtypes  # noqa: F401  the name bfloat16 for NumPy
import numpy as np
import pytest
from safetensors.numpy import load_file, save
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO
from tests.hub_server import HubServer, Repo

from aethermind import LLM, Runtime, SamplingParams
from aethermind.checkpoint.gguf_tensors import ROPE_FACTORS, GgufParts
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.engine import compile_model
from aethermind.errors import CheckpointError, ConfigError, OutOfMemoryError
from aethermind.model.hub import Download, begin_download
from aethermind.model.hub_arrival import Arrival, begin_arrival, is_any_arriving
from aethermind.model.hub_files import INDEX, HubName

NAME = HubName("org/demo")
TEXTS = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.suffix == ".json"}
TENSORS = load_file(DEMO / "model.safetensors")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(autouse=True)
def no_download_outlives_its_test(hub_server: HubServer) -> Iterator[None]:
    yield
    for event in hub_server.held.values():
        event.set()
    for thread in threading.enumerate():
        if thread.name == "aethermind-download":
            thread.join()


def sharded() -> Repo:
    half = len(TENSORS) // 2
    parts = [dict(list(TENSORS.items())[:half]), dict(list(TENSORS.items())[half:])]
    weight_map = {name: shard for shard, part in zip(SHARDS, parts, strict=True) for name in part}
    index = {INDEX: json.dumps({"weight_map": weight_map}).encode()}
    return Repo(TEXTS | index | {shard: save(part) for shard, part in zip(SHARDS, parts, strict=True)})


def hold(server: HubServer, repo: Repo, shard: str) -> Event:
    event = Event()
    server.held[sha256(repo.files[shard]).hexdigest()] = event
    return event


def begun() -> Arrival:
    arrival = begin_arrival(NAME)
    assert isinstance(arrival, Arrival)
    return arrival


def first_of(repo: Repo, shard: str) -> str:
    weight_map = json.loads(repo.files[INDEX])["weight_map"]
    return next(name for name in weight_map if weight_map[name] == shard)


def test_a_tensor_waits_for_its_own_file_alone(hub_server: HubServer) -> None:
    repo = hub_server.repos["org/demo"] = sharded()
    second = hold(hub_server, repo, SHARDS[1])
    arrival = begun()
    early, late = (first_of(repo, shard) for shard in SHARDS)
    checkpoint = arrival.checkpoint()
    np.testing.assert_array_equal(checkpoint.array(early), TENSORS[early])
    assert not (arrival.path / SHARDS[1]).exists()
    assert {name: checkpoint.info(name).shape for name in checkpoint.names} == {
        name: array.shape for name, array in TENSORS.items()
    }
    second.set()
    np.testing.assert_array_equal(checkpoint.array(late), TENSORS[late])
    assert arrival.checkpoint().paths == Checkpoint.open(arrival.path).paths == checkpoint.paths


def test_a_model_is_compiled_before_its_weights_are_there(hub_server: HubServer) -> None:
    repo = hub_server.repos["org/demo"] = sharded()
    first = hold(hub_server, repo, SHARDS[0])
    compiled = compile_model(Runtime.boot(), "org/demo", device="numpy", max_model_len=64)
    assert not (compiled.source.path / SHARDS[0]).exists()
    first.set()
    params = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM("org/demo", device="numpy", max_model_len=64) as named, LLM(DEMO, device="numpy", max_model_len=64) as own:
        texts = [llm.generate("Once upon", params)[0].outputs[0].text for llm in (named, own)]
    assert texts[0] == texts[1] != ""
    large = [path for method, path, headers in hub_server.requests if "/cdn/" in path and "range" not in headers]
    assert len(large) == len(SHARDS), "each file is downloaded once, however often the model is opened"


def test_a_failed_download_is_said_where_a_value_is_read_and_tried_again(hub_server: HubServer) -> None:
    repo = hub_server.repos["org/demo"] = sharded()
    second = hold(hub_server, repo, SHARDS[1])
    checkpoint, late = begun().checkpoint(), first_of(repo, SHARDS[1])
    del hub_server.repos["org/demo"]  # its second file is gone, too
    second.set()
    with pytest.raises(ConfigError, match="org/demo"):
        checkpoint.array(late)
    hub_server.repos["org/demo"] = repo
    np.testing.assert_array_equal(begun().checkpoint().array(late), TENSORS[late])


def test_a_file_that_is_another_than_its_header_said_is_refused(hub_server: HubServer) -> None:
    repo = hub_server.repos["org/demo"] = sharded()
    first = hold(hub_server, repo, SHARDS[0])
    arrival = begun()
    checkpoint, name = arrival.checkpoint(), first_of(repo, SHARDS[0])
    header = arrival._headers / SHARDS[0]
    assert header.stat().st_size == len(repo.files[SHARDS[0]])
    first.set()
    arrival._files[SHARDS[0]].result()
    (arrival.path / SHARDS[0]).unlink()
    (arrival.path / SHARDS[0]).write_bytes(save({name: np.zeros(3, np.float32)}))
    with pytest.raises(CheckpointError, match="changed on the Hub"):
        checkpoint.array(name)


def test_a_broken_file_is_named_by_its_path_in_the_cache(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo(TEXTS | {"model.safetensors": b"{" * 100})
    arrival = begun()
    with pytest.raises(CheckpointError, match=re.escape(str(arrival.path / "model.safetensors"))):
        arrival.checkpoint()


def test_weights_in_other_formats_are_waited_for(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo({"config.json": TEXTS["config.json"], "pytorch_model.bin": b"0"})
    path = begin_arrival(NAME)
    assert isinstance(path, Path)
    assert (path / "pytorch_model.bin").read_bytes() == b"0"


GGUF = HubName("org/demo", None, "Q8_0")
PARTS = ("Q8_0/demo-Q8_0-00001-of-00002.gguf", "Q8_0/demo-Q8_0-00002-of-00002.gguf")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with factors of rotary frequencies, which are configuration, as Llama 3.1's files have them."""
    path = tmp_path_factory.mktemp("gguf") / "demo-Q8_0.gguf"
    config = json.loads(TEXTS["config.json"])
    num_factors = config["hidden_size"] // config["num_attention_heads"] // 2
    return write_gguf(
        DEMO,
        path,
        quantised={"blk.0.ffn_up.weight": "Q8_0"},
        more=lambda writer: writer.add_tensor(ROPE_FACTORS, np.linspace(1, 2, num_factors, dtype=np.float32)),
    )


def test_a_gguf_model_is_compiled_before_its_file_is_there(hub_server: HubServer, gguf_file: Path) -> None:
    repo = hub_server.repos["org/demo"] = Repo({gguf_file.name: gguf_file.read_bytes()})
    arrives = hold(hub_server, repo, gguf_file.name)
    sizes: dict[str, Any] = {"device": "numpy", "max_model_len": 64}
    compiled = compile_model(Runtime.boot(), "org/demo:Q8_0", **sizes)
    compiled.source.tokenizer()
    assert compiled.source.path.name == gguf_file.name
    assert not compiled.source.path.exists()
    with pytest.raises(OutOfMemoryError, match="may be used by --memory"):
        LLM("org/demo:Q8_0", **sizes, memory="16MiB")
    arrives.set()
    params = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM("org/demo:Q8_0", **sizes) as named, LLM(gguf_file, **sizes) as own:
        texts = [llm.generate("Once upon", params)[0].outputs[0].text for llm in (named, own)]
    assert texts[0] == texts[1] != ""
    whole = [path for _, path, headers in hub_server.requests if "/cdn/" in path and "range" not in headers]
    assert len(whole) == 1


def test_a_tensor_of_a_split_gguf_model_waits_for_its_own_part(hub_server: HubServer, tmp_path: Path) -> None:
    for number, path in enumerate(PARTS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        writer = gguf.GGUFWriter(tmp_path / path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(PARTS))
        writer.add_tensor(f"blk.{number}.attn_q.weight", np.full((4, 32), number, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    repo = hub_server.repos["org/demo"] = Repo({path: (tmp_path / path).read_bytes() for path in PARTS})
    second = hold(hub_server, repo, PARTS[1])
    arrival = begin_arrival(GGUF)
    assert isinstance(arrival, Arrival)
    parts = arrival.gguf()
    assert parts.names == ("blk.0.attn_q.weight", "blk.1.attn_q.weight")
    assert np.unique(np.asarray(parts.array("blk.0.attn_q.weight"))).tolist() == [0]
    assert [path.exists() for path in parts.paths] == [True, False]
    second.set()
    assert np.unique(np.asarray(parts.array("blk.1.attn_q.weight"))).tolist() == [1]
    assert arrival.gguf().paths == GgufParts(arrival.path).paths == parts.paths


def test_a_broken_or_changed_gguf_file_is_refused(hub_server: HubServer, gguf_file: Path) -> None:
    hub_server.repos["org/broken"] = Repo({"broken-Q8_0.gguf": b"GGUF" + b"\7" * 100})
    broken = begin_arrival(HubName("org/broken"))
    assert isinstance(broken, Arrival)
    with pytest.raises(CheckpointError, match=re.escape(str(broken.path))):
        broken.gguf()
    repo = hub_server.repos["org/demo"] = Repo({gguf_file.name: gguf_file.read_bytes()})
    arrives = hold(hub_server, repo, gguf_file.name)
    arrival = begin_arrival(GGUF)
    assert isinstance(arrival, Arrival)
    parts = arrival.gguf()
    arrives.set()
    arrival._files[gguf_file.name].result()
    arrival.path.unlink()
    write_gguf(DEMO, arrival.path)
    with pytest.raises(CheckpointError, match="changed on the Hub"):
        parts.array("token_embd.weight")


def test_two_models_begin_at_once_and_one_model_begins_once(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub_server.repos["org/demo"] = hub_server.repos["org/other"] = sharded()
    held = [hold(hub_server, repo, shard) for shard in SHARDS]
    both = Barrier(2, timeout=10)

    def begin_together(name: HubName) -> Download | Path:
        both.wait()
        return begin_download(name)

    monkeypatch.setattr("aethermind.model.hub_arrival.begin_download", begin_together)
    with ThreadPoolExecutor() as pool:
        names = [NAME, HubName("org/other"), NAME, HubName("org/other")]
        places = list(pool.map(begin_arrival, names))
        assert places[:2] == places[2:]
        assert places[0] != places[1]
        for event in held:
            event.set()


def test_calls_for_one_model_that_cannot_be_had_all_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Event()

    def begin_late(name: HubName) -> Download | Path:
        assert called.wait(10)
        return begin_download(name)

    monkeypatch.setattr("aethermind.model.hub_arrival.begin_download", begin_late)
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(begin_arrival, NAME) for _ in range(2)]
        called.set()
        for call in calls:
            with pytest.raises(ConfigError, match="org/demo"):
                call.result()
    assert not is_any_arriving()
