"""The demo model as a .gguf file: every way to use a model, and one sentence for every way to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.process.client import TokenizerFrontend
from aethermind.errors import AetherMindError, CheckpointError, ConfigError, TokenizerError
from aethermind.text import Tokenizer, render_chat

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(DEMO, tmp_path_factory.mktemp("gguf") / "demo.gguf")


def test_answers_equal_those_from_safetensors(open_demo: Callable[..., LLM], demo: LLM, demo_gguf: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    (wanted,) = demo.generate("Once upon a time", params)
    with open_demo(model=demo_gguf) as llm:
        (found,) = llm.generate("Once upon a time", params)
    assert found.outputs[0].token_ids == wanted.outputs[0].token_ids
    assert found.outputs[0].text == wanted.outputs[0].text


def test_tokens_and_chats_are_those_of_the_directory(runtime: Runtime, demo_gguf: Path) -> None:
    ours, theirs = runtime.open_source(demo_gguf).tokenizer(), Tokenizer.from_directory(DEMO)
    assert ours.special_tokens == theirs.special_tokens
    assert ours.chat_template is not None
    assert theirs.chat_template is not None
    chat = render_chat(ours.chat_template, MESSAGES)
    assert chat == render_chat(theirs.chat_template, MESSAGES)
    for text in (chat, "Once upon a time, 123 e\u0301 漢字 <|im_end|>\n\n  it's"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def test_sampling_of_the_file(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    path = write_gguf(DEMO, tmp_path / "m.gguf", more=lambda writer: writer.add_sampling_temp(0.7))
    with open_demo(model=path) as llm:
        assert llm.sampling_defaults == {"temperature": 0.7}


def with_pre(name: str) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["tokenizer.ggml.pre"]
        writer.add_tokenizer_pre(name)

    return change


def test_the_tokenizer_of_another_directory(open_demo: Callable[..., LLM], runtime: Runtime, tmp_path: Path) -> None:
    """Where a file has one that is not read: by a model's name, its directory, or the file in it; by servers too."""
    path = write_gguf(DEMO, tmp_path / "bad.gguf", more=with_pre("no-rule"))
    with pytest.raises(TokenizerError, match=r"Pass the model's Hugging Face directory as tokenizer\."):
        open_demo(model=path)
    for tokenizer in ("demo", DEMO, DEMO / "tokenizer.json"):
        source = runtime.open_source(path, tokenizer)
        assert source.path == path
        assert source.tokenizer().encode("Once upon a time") == Tokenizer.from_directory(DEMO).encode(
            "Once upon a time"
        )
    with open_demo(model=path, tokenizer=DEMO) as llm, open_demo() as own:
        params = SamplingParams(temperature=0, max_tokens=8)
        texts = [one.generate("Once upon a time", params)[0].outputs[0].text for one in (llm, own)]
    assert texts[0] == texts[1]
    assert TokenizerFrontend.open(runtime, path, "demo").tokenizer.chat_template
    with pytest.raises(ConfigError, match="nowhere"):
        open_demo(model=path, tokenizer="./nowhere")


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"arch": "xverse"},
            ConfigError,
            "GGUF architecture 'xverse'. Installed: ",
        ),
        ({"without": ("general.architecture",)}, ConfigError, "no general.architecture"),
        ({"without": ("qwen2.block_count",)}, ConfigError, "no qwen2.block_count"),
        ({"without": ("tokenizer.ggml.merges",)}, TokenizerError, "no tokenizer.ggml.merges"),
        ({"more": with_pre("no-rule")}, TokenizerError, "'no-rule'"),
        (
            {"quantised": {"blk.1.ffn_up.weight": "Q8_1"}},
            CheckpointError,
            "'blk.1.ffn_up.weight' in the quantised type",
        ),
    ],
)
def test_an_unusable_file_is_an_error_of_one_sentence(
    open_demo: Callable[..., LLM],
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[AetherMindError],
    says: str,
) -> None:
    path = write_gguf(DEMO, tmp_path / "bad.gguf", **changes)
    with pytest.raises(error) as caught:
        open_demo(model=path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_file(open_demo: Callable[..., LLM], demo_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    content = demo_gguf.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is truncated"):
        open_demo(model=path)
