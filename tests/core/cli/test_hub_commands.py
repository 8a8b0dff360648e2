"""pull, and models list, show and rm: models of the Hugging Face Hub in the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO
from tests.hub_server import HubServer, Repo

DEMO_FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


@pytest.fixture
def repos(hub_server: HubServer, tmp_path: Path) -> HubServer:
    """The Hub with a model in safetensors, and a GGUF file of it."""
    gguf = write_gguf(DEMO, tmp_path / "demo-BF16.gguf").read_bytes()
    hub_server.repos |= {"org/demo": Repo(DEMO_FILES), "org/demo-GGUF": Repo({"demo-BF16.gguf": gguf})}
    return hub_server


def listed(invoke: Any, *words: str) -> dict[str, dict[str, Any]]:
    result = invoke("models", *words, "--json")
    assert result.exit_code == 0, result.output
    return {record["name"]: record for record in json.loads(result.stdout)["models"]}


@pytest.mark.usefixtures("repos")
def test_models_are_pulled_listed_shown_and_deleted(invoke: Any) -> None:
    missing = invoke("models", "org/demo")
    assert missing.exit_code == 2
    assert "org/demo is no path and was not downloaded. Run `aethermind pull org/demo`" in missing.stderr
    pulled = invoke("pull", "org/demo", "hf.co/org/demo-GGUF:BF16")
    assert pulled.exit_code == 0, pulled.output
    directory, file = map(Path, pulled.stdout.split())
    assert (directory / "model.safetensors").read_bytes() == DEMO_FILES["model.safetensors"]
    found = listed(invoke, "list")
    assert {"demo", "org/demo", "org/demo-GGUF:BF16"} <= set(found)
    assert found == listed(invoke)
    assert found["org/demo"]["path"] == str(directory)
    assert found["org/demo-GGUF:BF16"]["path"] == str(file)
    assert found["org/demo"]["parameters"] == found["org/demo-GGUF:BF16"]["parameters"] == found["demo"]["parameters"]
    assert {record["error"] for record in found.values()} == {None}
    shown = invoke("models", "show", "org/demo-GGUF:BF16")
    assert f"path            {file}" in shown.stdout
    deleted = invoke("models", "rm", "org/demo")
    assert deleted.exit_code == 0
    assert deleted.stdout.startswith("Deleted org/demo: 6.")
    assert not directory.exists()
    assert invoke("models", "rm", "org/demo-GGUF:BF16").exit_code == 0
    assert not file.exists()
    assert {name for name in listed(invoke) if "/" in name} == set()


def test_pull_fetches_a_new_revision_and_other_commands_do_not(repos: HubServer, invoke: Any) -> None:
    first = invoke("pull", "org/demo").stdout
    repos.repos["org/demo"] = Repo({**DEMO_FILES, "generation_config.json": b"{}"})
    assert listed(invoke, "org/demo")["org/demo"]["path"] == first.strip()
    repos.requests.clear()
    second = invoke("pull", "org/demo").stdout
    assert second != first
    assert listed(invoke, "org/demo")["org/demo"]["path"] == second.strip()
    assert not any(path.startswith("/cdn/") for path in repos.downloads()), "the same weights are not fetched again"


def test_pull_takes_adapters(hub_server: HubServer, invoke: Any) -> None:
    hub_server.repos["org/lora"] = Repo({"adapter_config.json": b"{}", "adapter_model.safetensors": b"1"})
    result = invoke("pull", "org/lora")
    assert result.exit_code == 2
    assert "It is a LoRA adapter" in result.stderr
    result = invoke("pull", "--adapter", "org/lora")
    assert (Path(result.stdout.strip()) / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pull", "./model"), "'./model' is not a name on the Hugging Face Hub. Write ORG/NAME"),
        (("pull", "org/none"), "'org/none' is neither a path nor a model on the Hugging Face Hub"),
        (("models", "rm", "org/none"), "org/none is not in the cache"),
        (("models", "rm", "demo"), "'demo' was not downloaded by its name"),
        (("models", "rm"), "Say which model, as in `aethermind models rm ORG/NAME`"),
        (("run", "org/none"), "'org/none' is neither a path nor a model on the Hugging Face Hub"),
    ],
)
def test_a_wrong_name_is_a_sentence(hub_server: HubServer, invoke: Any, words: tuple[str, ...], says: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert hub_server.downloads() == []


def test_the_help_of_run_has_the_lines_of_chat(invoke: Any) -> None:
    def description(command: str) -> str:
        text = invoke(command, "--help").stdout
        return text[text.index("  On a terminal") : text.index("Arguments:")]

    assert description("run") == description("chat")


def two_shards() -> dict[str, bytes]:
    """The demo model in two files with an index; the header of the second is longer than what is read at first."""
    content = DEMO_FILES["model.safetensors"]
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    names = sorted(header)
    files, weight_map = {}, {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        entries: dict[str, Any] = {"__metadata__": {"padding": " " * (300_000 if number == 2 else 0)}}
        values = b""
        for name in part:
            first, last = (begin + offset for offset in header[name]["data_offsets"])
            entries[name] = {**header[name], "data_offsets": [len(values), len(values) + last - first]}
            values += content[first:last]
            weight_map[name] = f"model-0000{number}-of-00002.safetensors"
        text = json.dumps(entries).encode()
        files[f"model-0000{number}-of-00002.safetensors"] = len(text).to_bytes(8, "little") + text + values
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    rest = {name: data for name, data in DEMO_FILES.items() if name != "model.safetensors"}
    return {**rest, **files, "model.safetensors.index.json": index}


def test_the_memory_of_a_model_on_the_hub_is_estimated_from_its_headers(
    repos: HubServer, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aethermind.engine.loading.memory_estimate.resident_bytes", lambda: 50_000_000)
    repos.repos["org/shards"] = Repo(two_shards())
    names = ("org/demo", "org/demo-GGUF", "org/shards")
    options = ("--estimate", "--device", "numpy", "--max-model-len", "64")
    found = listed(invoke, *names, *options)
    large = [headers for _, path, headers in repos.requests if path.startswith("/cdn/")]
    bounds = [headers["range"].removeprefix("bytes=").split("-") for headers in large]
    assert len(bounds) >= 4
    assert sum(int(last) + 1 - int(first) for first, last in bounds) < 2_000_000, "of 20 MB"
    assert {record["path"] for record in found.values()} == {"not downloaded"}
    assert not any("/" in name for name in listed(invoke)), "the cache has no model"
    assert invoke("pull", "org/demo", "org/demo-GGUF", "org/shards").exit_code == 0
    pulled = listed(invoke, *names, *options)
    assert {name: {**record, "path": ""} for name, record in found.items()} == {
        name: {**record, "path": ""} for name, record in pulled.items()
    }


@pytest.mark.parametrize(
    ("repo", "says"),
    [
        (Repo(status=404), "'org/x' is neither a path nor a model"),
        (Repo(DEMO_FILES, is_gated=True), "org/x is gated"),
        (Repo({"config.json": b"{}", "pytorch_model.bin": b"1"}), "org/x has weights in PyTorch's format"),
        (Repo({"config.json": b"{}"}), "org/x has no weights that can be read"),
    ],
    ids=["missing", "gated", "pytorch", "empty"],
)
def test_headers_that_cannot_be_read_are_a_sentence(hub_server: HubServer, invoke: Any, repo: Repo, says: str) -> None:
    hub_server.repos["org/x"] = repo
    result = invoke("models", "org/x", "--estimate", "--device", "numpy")
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
