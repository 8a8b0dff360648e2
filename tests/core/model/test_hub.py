"""Models by their names on the Hugging Face Hub: the real client against a stand-in of the Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.adapters import linear_shapes, write_adapter
from tests.end_to_end.models import DEMO
from tests.hub_server import HubServer, Repo
from tests.ports import free_port

from aethermind import LLM, SamplingParams
from aethermind.errors import ConfigError
from aethermind.model import hub
from aethermind.model.hub_files import HubName
from aethermind.model.registry import ModelRegistry

DEMO_FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
NEEDED = {name for name in DEMO_FILES if name.endswith((".json", ".safetensors"))}


def locate(text: str) -> Path:
    return ModelRegistry().locate(text)


def test_a_model_is_downloaded_once_and_then_used_without_a_request(hub_server: HubServer) -> None:
    extra = {"pytorch_model.bin": b"1", "original/params.json": b"2", "tf_model.h5": b"3", "x-Q8_0.gguf": b"4"}
    hub_server.repos["org/demo"] = Repo(DEMO_FILES | extra)
    path = locate("org/demo")
    assert {file.name for file in path.iterdir()} == NEEDED
    assert all((path / name).read_bytes() == DEMO_FILES[name] for name in NEEDED)
    assert hub.title_of(path) == "org/demo"
    num_requests = len(hub_server.requests)
    for text in ("org/demo", "org/demo@main", "hf.co/org/demo", "https://huggingface.co/org/demo"):
        assert locate(text) == path
    assert len(hub_server.requests) == num_requests


def test_the_token_is_sent_to_the_hub_and_not_to_the_host_of_large_files(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.repos["org/private"] = Repo(DEMO_FILES, token="hf_good")
    with pytest.raises(ConfigError, match=r"'org/private' is neither a path nor a model .* `hf auth login`"):
        locate("org/private")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    locate("org/private")
    sent = [("authorization" in headers, path.startswith("/cdn/")) for _, path, headers in hub_server.requests[1:]]
    assert set(sent) == {(True, False), (False, True)}


def test_a_path_that_exists_wins_over_a_name(hub_server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "org" / "demo").mkdir(parents=True)
    assert locate("org/demo") == Path("org/demo")
    assert locate("./org/other") == Path("org/other")
    assert locate("org/model.gguf") == Path("org/model.gguf")
    assert hub_server.requests == []


def test_a_cut_download_goes_on_where_it_stopped(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo(DEMO_FILES)
    hub_server.cuts = 3
    path = locate("org/demo")
    assert (path / "model.safetensors").read_bytes() == DEMO_FILES["model.safetensors"]
    size = len(DEMO_FILES["model.safetensors"])
    ranges = [headers.get("range") for _, path, headers in hub_server.requests if path.startswith("/cdn/")]
    assert len(ranges) == 4
    assert ranges[0] is None
    starts = [int(given.removeprefix("bytes=").rstrip("-")) for given in ranges[1:] if given]
    assert 0 < starts[0] < starts[1] < starts[2] < size


def test_a_download_that_ends_early_is_no_model_until_it_is_complete(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo(DEMO_FILES)
    hub_server.cuts = 1000
    with pytest.raises(ConfigError, match=r"cut off|cannot be reached"):
        locate("org/demo")
    assert hub.find_cached(HubName("org/demo")) is None
    hub_server.cuts = 0
    hub_server.requests.clear()
    locate("org/demo")
    digest = sha256(DEMO_FILES["model.safetensors"]).hexdigest()
    assert hub_server.downloads() == [f"/cdn/{digest}"], "small files are not fetched again"


def test_a_gguf_file_is_named_by_its_quantisation(hub_server: HubServer) -> None:
    parts = {f"big-Q6_K-0000{i}-of-00002.gguf": b"%d" % i for i in (1, 2)}
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "README.md", "IQ2/m-UD-IQ2_XXS.gguf")
    hub_server.repos["org/m-GGUF"] = Repo({name: name.encode() for name in names} | parts)
    for text, file in {
        "hf.co/org/m-GGUF:Q8_0": "m-Q8_0.gguf",
        "org/m-GGUF:q8_0": "m-Q8_0.gguf",
        "org/m-GGUF": "m-Q8_0.gguf",  # what is in the cache is used
        "org/m-GGUF:UD-IQ2_XXS": "IQ2/m-UD-IQ2_XXS.gguf",
        "org/m-GGUF@main:Q6_K": "big-Q6_K-00001-of-00002.gguf",
    }.items():
        found = locate(text)
        assert found.as_posix().endswith(f"/{hub_server.repos['org/m-GGUF'].commit}/{file}")
    assert (found.parent / "big-Q6_K-00002-of-00002.gguf").read_bytes() == b"2"
    assert not (found.parent / "m-Q4_K_M.gguf").exists()
    with pytest.raises(ConfigError, match=r"as in hf.co/org/m-GGUF:Q4_K_M\.$"):
        locate("org/m-GGUF:Q3_K_M")
    with pytest.raises(ConfigError, match=r"no .gguf file of Q3_K_S: name one of Q4_K_M, Q6_K, Q8_0, UD-IQ2_XXS"):
        locate("org/m-GGUF:Q3_K_S")
    hub.delete_cached(HubName("org/m-GGUF"))
    assert locate("org/m-GGUF").name == "m-Q4_K_M.gguf"


def test_shards_are_those_of_the_index(hub_server: HubServer) -> None:
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    shards = {"model-00001-of-00002.safetensors": b"1", "model-00002-of-00002.safetensors": b"2"}
    texts = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": index}
    hub_server.repos["org/big"] = Repo(texts | shards | {"consolidated-00001-of-00001.safetensors": b"3"})
    path = locate("org/big")
    assert {file.name for file in path.iterdir()} == {*texts, *shards}
    (path / "model-00002-of-00002.safetensors").unlink()
    assert hub.find_cached(HubName("org/big")) is None


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub_server: HubServer) -> None:
    repo = hub_server.repos["org/demo"] = Repo(DEMO_FILES, revisions=("v1",))
    assert locate("org/demo@v1").name == repo.commit
    assert locate(f"org/demo@{repo.commit}").name == repo.commit
    with pytest.raises(ConfigError, match="org/demo has no revision main"):
        locate("org/demo")


def test_a_tokenizer_or_an_adapter_is_fetched_alone(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo(DEMO_FILES)
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"1"}
    hub_server.repos["org/lora"] = Repo(adapter | {"optimizer.pt": b"2", "tokenizer.json": b"{}"})
    path = ModelRegistry().locate("org/demo", "tokenizer")
    assert not (path / "model.safetensors").exists()
    assert (path / "tokenizer.json").exists()
    assert hub.find_cached(HubName("org/demo")) is None
    assert {file.name for file in hub.local_path("org/lora", "adapter").iterdir()} == set(adapter)
    with pytest.raises(ConfigError, match=r"org/demo is no LoRA adapter"):
        hub.local_path("org/demo", "adapter")
    with pytest.raises(ConfigError, match=r"It is a LoRA adapter: name its model, and this as adapters"):
        locate("org/lora")


def test_a_renamed_repository_is_found_and_its_new_name_logged(
    hub_server: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    hub_server.repos |= {"org/old": Repo(DEMO_FILES, moved_to="org/new"), "org/new": Repo(DEMO_FILES)}
    path = locate("org/old")
    assert "org/old is called org/new now" in caplog.text
    assert locate("org/old") == path


@pytest.mark.parametrize(
    ("repo", "token", "says"),
    [
        (None, None, r"'org/demo' is neither a path nor a model on the Hugging Face Hub"),
        (None, "hf_good", r"'org/demo' is neither a path nor a model on the Hugging Face Hub"),
        (Repo(DEMO_FILES, token="hf_good"), "hf_bad", r"does not accept your token"),
        (Repo(DEMO_FILES, is_gated=True), None, r"org/demo is gated: accept its conditions at http.*/org/demo"),
        (Repo(DEMO_FILES, is_gated=True), "hf_good", r"org/demo is gated"),
        (Repo(DEMO_FILES, status=403), "hf_good", r"Your token may not read org/demo"),
        (Repo(DEMO_FILES, status=429), None, r"limits your requests \(429\): try again in 0 s"),
        (Repo(DEMO_FILES, status=503), None, r"answered 503 for org/demo\. Try again later"),
        (Repo({"README.md": b""}), None, r"org/demo has no weights that can be read"),
        (Repo(DEMO_FILES, sizes={"model.safetensors": 2**60}), None, r"needs 1152921504\.\d+ GB in .*cache, where"),
    ],
    ids=[
        "missing",
        "missing+token",
        "wrong-token",
        "gated",
        "gated+token",
        "forbidden",
        "429",
        "503",
        "no-weights",
        "no-space",
    ],
)
def test_a_failure_is_a_sentence(
    hub_server: HubServer, repo: Repo | None, token: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if repo is not None:
        hub_server.repos["org/demo"] = repo
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match=says) as error:
        locate("org/demo")
    assert "\n" not in str(error.value)
    assert not any(path.startswith("/cdn/") for _, path, _ in hub_server.requests)


def test_without_a_network_the_cache_is_used_and_other_names_say_so(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub_server.repos["org/demo"] = Repo(DEMO_FILES)
    path = locate("org/demo")
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert locate("org/demo") == path
    (path / "tokenizer.json").unlink()
    assert locate("org/demo") == path, "more than this the cache may never have had"
    with pytest.raises(ConfigError, match=r"cannot be reached to download org/other .*Check the network"):
        locate("org/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"org/other is not in the cache, and HF_HUB_OFFLINE forbids downloads"):
        locate("org/other")


def test_without_the_client_a_name_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"need huggingface_hub: run `pip install .*\[hub\]'?`, or give a path"):
        locate("org/demo")
    assert hub.cached_models() == []


def test_an_llm_takes_names_for_model_tokenizer_draft_model_and_adapter(hub_server: HubServer, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    write_adapter(adapter, linear_shapes(json.loads(DEMO_FILES["config.json"])), seed=0, size=0.2)
    lora = {path.name: path.read_bytes() for path in adapter.iterdir()}
    hub_server.repos |= {f"org/{name}": Repo(DEMO_FILES) for name in ("demo", "draft", "tokenizer")}
    hub_server.repos["org/lora"] = Repo(lora)
    params = SamplingParams(max_tokens=6, temperature=0.0)

    def answers(model: str, lora: str, **options: Any) -> list[tuple[int, ...]]:
        with LLM(model, adapters=[lora], device="numpy", max_model_len=64, **options) as llm:
            assert llm.info.adapters == (Path(lora).name,)
            outputs = [llm.generate("Once", params, adapter=each)[0] for each in (None, Path(lora).name)]
            return [tuple(output.outputs[0].token_ids) for output in outputs]

    drafting = {"speculative_method": "draft", "draft_model": "org/draft", "tokenizer": "org/tokenizer"}
    plain, adapted = answers("org/demo", "org/lora", **drafting)
    assert [plain, adapted] == answers("demo", str(adapter))
    assert plain != adapted


def test_commands_take_a_name_and_the_client_its_environment_variables(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.repos["org/demo"] = Repo(DEMO_FILES, token="hf_good")
    variables = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub_server.endpoint, "HF_HUB_OFFLINE": "0"}
    options = ["--max-tokens", "8", "--temperature", "0", "--no-stats", "--device", "numpy"]

    def generate(model: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aethermind", "generate", "Once upon a time", "--model", model, *options]
        environment = {**os.environ, **variables, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    refused = generate("org/demo")
    assert refused.returncode == 2
    assert refused.stderr.startswith("Error: 'org/demo' is neither a path nor a model on the Hugging Face Hub")
    named = generate("org/demo", HF_TOKEN="hf_good")
    assert named.returncode == 0, named.stderr
    assert named.stdout == generate("demo").stdout != ""
    assert generate("org/demo", HF_HUB_OFFLINE="1").stdout == named.stdout


@pytest.mark.parametrize(
    "text",
    [
        "modelscope.cn/org/demo-1.5B",
        "https://www.modelscope.cn/models/org/demo-1.5B",
        "https://modelscope.ai/models/org/demo-1.5B/files?version=2",
        "modelscope://org/demo-1.5B@master",
        "ms://org/demo-1.5B:Q4_K_M",
    ],
)
def test_a_name_of_modelscope_is_refused_with_the_command_of_its_client(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"`modelscope download org/demo-1\.5B --local-dir demo-1\.5B`, and give \./"):
        hub.local_path(text)
    assert hub.local_path(str(tmp_path / "modelscope.cn" / "org" / "demo")).name == "demo"


def test_a_model_is_missing_until_it_is_downloaded_or_if_it_is_not_installed(hub_server: HubServer) -> None:
    hub_server.repos["org/demo"] = Repo(DEMO_FILES)
    registry = ModelRegistry()
    registry.register("org/installed", lambda: DEMO, provider="a package")
    assert [registry.is_missing(model) for model in ("org/installed", "./org/demo", str(DEMO), "demo")] == [False] * 4
    assert registry.is_missing("org/demo")
    registry.locate("org/demo")
    assert not registry.is_missing("org/demo")
