"""Everything a user can get wrong: one clear sentence that names the value, from the API and from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from tests.end_to_end.models import CONFIG, DEMO, copy_demo
from typer.testing import CliRunner

from aethermind import LLM, AetherMindError, Runtime, SamplingParams
from aethermind.cli.app import app
from aethermind.errors import DeviceError

WEIGHTS = "model.safetensors"
PROMPT = "Once upon a time"
SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "max_tokens", "repetition_penalty", "seed"})


@dataclass(frozen=True)
class Mistake:
    """What is wrong (a directory that `model` makes, options, the prompt) and what has to be said about it."""

    name: str
    says: tuple[str, ...]
    model: Callable[[Path], str | Path] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = PROMPT


def changed(**config: Any) -> Callable[[Path], Path]:
    """The demo model with fields of its config.json changed."""
    return lambda path: copy_demo(path / "model", config)


def replaced(name: str, content: bytes | None) -> Callable[[Path], Path]:
    """The demo model with one file replaced, or left out."""
    return lambda path: copy_demo(path / "model", files={name: content})


def empty_directory(path: Path) -> Path:
    (path / "nothing").mkdir()
    return path / "nothing"


def broken_shard(path: Path) -> Path:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    return copy_demo(path / "model", files={WEIGHTS: None, "model.safetensors.index.json": json.dumps(index).encode()})


def stored(**tensors: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]) -> Callable[[Path], Path]:
    """The demo model with tensors stored that are made of its own."""

    def write(path: Path) -> Path:
        own = load_file(DEMO / WEIGHTS)
        own |= {name.replace("__", "."): make(own) for name, make in tensors.items()}
        return copy_demo(path / "model", files={WEIGHTS: save(own)})

    return write


NUM_LAYERS = CONFIG["num_hidden_layers"]
NUM_HEADS = CONFIG["num_attention_heads"]
VOCAB_SIZE = CONFIG["vocab_size"]
CONTEXT = CONFIG["max_position_embeddings"]
GATE = [CONFIG["intermediate_size"], CONFIG["hidden_size"]]
CONTENT = (DEMO / WEIGHTS).read_bytes()
HEADER_END = 8 + int.from_bytes(CONTENT[:8], "little")

MISTAKES = (
    Mistake("unknown_model", ("'no-such-model'", "demo"), lambda _: "no-such-model"),
    Mistake("missing_directory", ("missing/model", "does not exist"), lambda path: path / "missing" / "model"),
    Mistake("empty_directory", ("nothing", "no config.json"), empty_directory),
    Mistake("path_is_a_file", ("config.json", "is a file"), lambda _: DEMO / "config.json"),
    Mistake("broken_config", ("config.json", "not valid JSON", "line 1"), replaced("config.json", b'{"hidden_size": ')),
    Mistake("config_is_no_object", ("config.json", "list"), replaced("config.json", b"[]")),
    Mistake("config_is_binary", ("config.json", "not valid JSON"), replaced("config.json", b"\xff\xfe\x00")),
    Mistake("no_architectures", ("architectures", "None"), changed(architectures=None, model_type=None)),
    Mistake(
        "unknown_architecture",
        ("'Qwen9ForCausalLM'", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        changed(architectures=["Qwen9ForCausalLM"]),
    ),
    Mistake("no_hidden_size", ("hidden_size", "None"), changed(hidden_size=None)),
    Mistake("layers_are_text", ("num_hidden_layers", "'four'"), changed(num_hidden_layers="four")),
    Mistake(
        "heads_do_not_divide",
        (f"num_attention_heads ({NUM_HEADS})", "num_key_value_heads (3)"),
        changed(num_key_value_heads=3),
    ),
    Mistake("unknown_activation", ("hidden_act", "'gelu'"), changed(hidden_act="gelu")),
    Mistake("unknown_rope", ("rope_type", "'spiral'", "yarn"), changed(rope_parameters={"rope_type": "spiral"})),
    Mistake("rope_by_layers", ("'full'",), changed(rope_parameters={"full": {"rope_type": "default"}})),
    Mistake("rope_without_factor", ("factor", "None"), changed(rope_scaling={"type": "linear"})),
    Mistake(
        "window_without_size",
        ("sliding_window",),
        changed(layer_types=["sliding_attention"] * NUM_LAYERS, sliding_window=0),
    ),
    Mistake("too_few_layer_types", ("layer_types", str(NUM_LAYERS)), changed(layer_types=["full_attention"])),
    Mistake(
        "window_layers_are_text",
        ("max_window_layers", "'all'"),
        changed(use_sliding_window=True, max_window_layers="all"),
    ),
    Mistake("config_dtype", ("'floaty'", "bfloat16"), changed(dtype="floaty")),
    Mistake(
        "broken_generation_config",
        ("generation_config.json", "not valid JSON"),
        replaced("generation_config.json", b"{"),
    ),
    Mistake(
        "end_that_is_no_id",
        ("eos_token_id in generation_config.json", "'</s>'"),
        replaced("generation_config.json", b'{"eos_token_id": "</s>"}'),
    ),
    Mistake("unknown_home", ("~nobody-has-this-name/m", "whole path"), lambda _: "~nobody-has-this-name/m"),
    Mistake(
        "kv_store_in_an_unknown_home",
        ("~nobody-has-this-name/kv", "whole path"),
        options={"kv_store": "disk:~nobody-has-this-name/kv"},
    ),
    Mistake("no_weights", (WEIGHTS, "no weights"), replaced(WEIGHTS, None)),
    Mistake("missing_shard", ("model-00001-of-00002.safetensors",), broken_shard),
    Mistake("empty_weights", (WEIGHTS, "0 bytes"), replaced(WEIGHTS, b"")),
    Mistake("truncated_weights", (WEIGHTS,), replaced(WEIGHTS, CONTENT[: len(CONTENT) // 2])),
    Mistake("truncated_header", (WEIGHTS, str(HEADER_END - 8)), replaced(WEIGHTS, CONTENT[:100])),
    Mistake(
        "corrupt_header", (WEIGHTS, "not valid JSON"), replaced(WEIGHTS, CONTENT[:20] + b"\x00" * 9 + CONTENT[29:])
    ),
    Mistake("huge_header", (WEIGHTS, str(2**63)), replaced(WEIGHTS, (2**63).to_bytes(8, "little") + CONTENT[8:])),
    Mistake(
        "missing_weights",
        ("missing", f"model.layers.{NUM_LAYERS}.input_layernorm.weight"),
        changed(num_hidden_layers=NUM_LAYERS + 1),
    ),
    Mistake(
        "unexpected_weights",
        ("unexpected", f"model.layers.{NUM_LAYERS - 1}.input_layernorm.weight"),
        changed(num_hidden_layers=NUM_LAYERS - 1),
    ),
    Mistake("misshapen_weights", ("misshapen", f"{GATE} instead of [700, {GATE[1]}]"), changed(intermediate_size=700)),
    Mistake(
        "weights_in_integers",
        ("model.norm.weight", "int32", "quantisation"),
        stored(model__norm__weight=lambda own: own["model.norm.weight"].int()),
    ),
    Mistake(
        "a_tied_head_of_its_own",
        ("lm_head.weight of other values", "tie_word_embeddings"),
        stored(lm_head__weight=lambda own: -own["model.embed_tokens.weight"]),
    ),
    Mistake(
        "weights_beyond_the_dtype",
        ("model.norm.weight", "float16", "bfloat16"),
        stored(model__norm__weight=lambda own: own["model.norm.weight"].float() * 1e6),
        {"dtype": "float16"},
    ),
    Mistake("no_tokenizer", ("tokenizer.json", "does not exist"), replaced("tokenizer.json", None)),
    Mistake("broken_tokenizer", ("tokenizer.json",), replaced("tokenizer.json", b"{}")),
    Mistake("prompt_too_long", ("5 tokens", "holds 4", "Shorten"), options={"max_model_len": 4}, prompt="a b c d e"),
    Mistake("empty_prompt", ("prompt is empty",), prompt=""),
    Mistake(
        "token_out_of_range",
        ("out of range", "100 entries"),
        changed(vocab_size=100, eos_token_id=1),
        {"load_format": "dummy"},
    ),
    Mistake(
        "context_too_long", ("max_model_len", str(CONTEXT + 1), str(CONTEXT)), options={"max_model_len": CONTEXT + 1}
    ),
    Mistake("unknown_device", ("'tpu'", "numpy"), options={"device": "tpu"}),
    Mistake("device_index", ("'numpy:3'", "1 device"), options={"device": "numpy:3"}),
    Mistake("device_syntax", ("'cuda:one'",), options={"device": "cuda:one"}),
    Mistake("unknown_dtype", ("'float13'", "bfloat16"), options={"dtype": "float13"}),
    Mistake("impossible_dtype", ("int8", "bfloat16"), options={"dtype": "int8"}),
    Mistake("unknown_quantization", ("'int3'", "Did you mean", "int4"), options={"quantization": "int3"}),
    Mistake("unknown_lm_head", ("'float8'", "int8"), options={"lm_head_quantization": "float8"}),
    Mistake("unknown_load_format", ("load_format", "'gguf'", "dummy"), options={"load_format": "gguf"}),
    Mistake("no_blocks", ("num_kv_blocks", "0"), options={"num_kv_blocks": 0}),
    Mistake("too_many_blocks", ("1000000000000 KV blocks", "numpy:0"), options={"num_kv_blocks": 10**12}),
    Mistake("negative_block_size", ("block_size", "-16"), options={"block_size": -16}),
    Mistake("temperature", ("temperature", "-1"), options={"temperature": -1.0}),
    Mistake("top_p", ("top_p", "2"), options={"top_p": 2.0}),
    Mistake("top_k", ("top_k", "-2"), options={"top_k": -2}),
    Mistake("min_p", ("min_p", "1.5"), options={"min_p": 1.5}),
    Mistake("max_tokens", ("max_tokens", "0"), options={"max_tokens": 0}),
    Mistake("repetition_penalty", ("repetition_penalty", "0"), options={"repetition_penalty": 0.0}),
    Mistake("seed", ("seed", "-1"), options={"seed": -1}),
)
ABSENT = tuple(
    Mistake(f"{device}_is_absent", (f"'{device}'", "not available"), options={"device": device})
    for device in ("cuda", "cuda:0", "cann")
)
each_mistake = pytest.mark.parametrize("mistake", [*MISTAKES, *ABSENT], ids=lambda mistake: mistake.name)


@pytest.fixture
def model(mistake: Mistake, tmp_path: Path, runtime: Runtime) -> str:
    device = str(mistake.options.get("device", "")).partition(":")[0]
    if mistake in ABSENT and any(entry.name == device and entry.probe().is_available for entry in runtime.devices):
        pytest.fail(f"{device} is there: run this where it is absent, or deselect `absent`")
    return str(mistake.model(tmp_path)) if mistake.model else "demo"


def assert_is_a_sentence(message: str, says: tuple[str, ...]) -> None:
    for words in says:
        assert words in message
    assert "\n" not in message
    assert "Traceback" not in message
    assert message.endswith(".")
    assert len(message) < 600


@each_mistake
def test_bad_input_to_the_api(mistake: Mistake, model: str, runtime: Runtime) -> None:
    options = {"device": "numpy", **{name: value for name, value in mistake.options.items() if name not in SAMPLING}}
    sampling = {name: value for name, value in mistake.options.items() if name in SAMPLING}
    with pytest.raises(AetherMindError) as caught:
        LLM(model, runtime=runtime, **options).generate(mistake.prompt, SamplingParams(**sampling))
    assert_is_a_sentence(str(caught.value), mistake.says)


@each_mistake
def test_bad_input_to_the_command_line(mistake: Mistake, model: str) -> None:
    options = {"model": model, "device": "numpy", **mistake.options}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    result = CliRunner().invoke(app, ["generate", mistake.prompt, *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    flags = {name: f"--{name.replace('_', '-')}" for name in mistake.options if "_" in name}
    says = (flags.get(words, words) for words in mistake.says)
    assert_is_a_sentence(result.stderr.removesuffix("\n"), tuple(says))


def test_bad_input_to_a_fresh_process(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "aethermind",
        "generate",
        PROMPT,
        "--model",
        str(tmp_path / "gone"),
        "--device",
        "numpy",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert_is_a_sentence(result.stderr.removesuffix("\n"), ("gone", "does not exist"))


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ({"prompt_token_ids": [1, VOCAB_SIZE]}, ("out of range", f"{VOCAB_SIZE} entries")),
        ({"prompt_token_ids": [-1]}, ("-1", "out of range")),
        ({"prompt_token_ids": []}, ("prompt is empty",)),
        ({"prompt_token_ids": "12"}, ("prompt_token_ids", "'12'")),
        ({"prompt_token_ids": [1.5]}, ("1.5",)),
        ({"prompt_token_ids": b"12"}, ("prompt_token_ids", "b'12'")),
        ({"prompt_embeds": 3.0}, ("prompt_embeds", "3.0")),
        ({"prompt_embeds": None}, ("prompt_embeds", "[n, hidden_size]")),
        ({"text": "hello"}, ("prompt_token_ids", "has text")),
        ([PROMPT, 7], ("7",)),
        (None, ("None",)),
        ("a\udcff", ("surrogate",)),
    ],
)
def test_prompts_of_the_wrong_kind(demo: LLM, prompts: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(AetherMindError) as caught:
        demo.generate(prompts)
    assert_is_a_sentence(str(caught.value), says)


def test_parameters_of_the_wrong_kind(demo: LLM) -> None:
    for params, says in (
        ([SamplingParams()], ("1 SamplingParams", "2 prompts")),
        (["greedy", "greedy"], ("'greedy'",)),
        ({"temperature": 0.0}, ("temperature",)),
        (SamplingParams(stop_token_ids=[10**6]), ("1000000", "out of range")),
    ):
        with pytest.raises(AetherMindError) as caught:
            demo.generate([PROMPT, PROMPT], params)  # type: ignore[arg-type]
        assert_is_a_sentence(str(caught.value), says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bogus": 1}, ("'bogus'", "chat_template_kwargs")),
        ({"chat_template_kwargs": 3}, ("mapping", "3")),
        ({"chat_template_kwargs": {3: 3}}, ("names", "3")),
        ({"chat_template_kwargs": {"messages": []}}, ("cannot set messages",)),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, ("cannot set add_generation_prompt",)),
    ],
)
def test_chat_options_of_the_wrong_kind(demo: LLM, options: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(AetherMindError) as caught:
        demo.chat([{"role": "user", "content": PROMPT}], **options)
    assert_is_a_sentence(str(caught.value), says)


def test_devices_of_the_wrong_kind(runtime: Runtime) -> None:
    for options in ({"device": None}, {"dtype": 32}):
        with pytest.raises(AetherMindError, match=f"{next(iter(options))} should be a name"):
            LLM("demo", runtime=runtime, **options)  # type: ignore[arg-type]


def test_a_closed_model_says_so(runtime: Runtime) -> None:
    llm = LLM("demo", device="numpy", num_kv_blocks=8, runtime=runtime)
    llm.close()
    with pytest.raises(AetherMindError, match="was closed"):
        llm.generate(PROMPT)


def test_one_bad_prompt_of_a_batch_queues_no_request(demo: LLM) -> None:
    with pytest.raises(AetherMindError):
        demo.generate([PROMPT, ""])
    assert not demo.engine.has_unfinished


def test_a_device_whose_plugin_failed() -> None:
    runtime = Runtime.boot()
    runtime.devices.record_failure("npu", "its plugin npu (aethermind-npu 0.3) failed: ImportError: no libnpu.")
    with pytest.raises(DeviceError) as caught:
        LLM(device="npu", runtime=runtime)
    assert_is_a_sentence(str(caught.value), ("'npu'", "aethermind-npu 0.3", "no libnpu", "doctor"))
