"""generate: sources of prompts, output and remarks, and interrupts."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import INFO, request_output

from aethermind import SamplingParams
from aethermind.cli.console import TextWriter
from aethermind.cli.generate import describe, request_metrics

SEED = ("--device", "numpy", "--max-tokens", "6", "--seed", "3")


def test_streams_each_part_once(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("Hel", "Hello", "Hello", "Hello there")
    result = invoke("generate", "hi")
    assert result.exit_code == 0
    assert result.stdout == "Hello there\n"
    assert result.stderr == ""
    assert llm.prompts == ["hi"]
    assert llm.is_closed
    assert llm.is_stream_closed


def test_writer_flushes_what_is_new_and_ends_the_line() -> None:
    stream = io.StringIO()
    writer = TextWriter(stream)
    seen = []
    for text in ("", "a", "ab", "ab"):
        writer.show(text)
        seen.append(stream.getvalue())
    writer.finish("abc")
    assert seen == ["", "a", "ab", "ab"]
    assert stream.getvalue() == "abc\n"
    ended = io.StringIO()
    TextWriter(ended).finish("line\n")
    assert ended.getvalue() == "line\n"


def test_no_stream_prints_the_same(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a", "ab")
    assert invoke("generate", "hi", "--no-stream").stdout == "ab\n"


def test_stats_go_to_stderr(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a", "ab", "abc")
    result = invoke("generate", "hi", "--stats", "--seed", "5")
    assert result.stdout == "abc\n"
    assert (
        result.stderr == "[2 + 3 tokens · first after 500 ms · then 10.0 tokens/s · model on fake:0 float32 · seed 5]\n"
    )


def test_stats_count_drafts() -> None:
    output = request_output("ab", [1, 2], finish_reason="stop", now=0.1)
    drafted = replace(output, metrics=replace(output.metrics, num_draft_tokens=9, num_accepted_tokens=4))
    assert "tokens/s · 4 of 9 drafts right · model on fake:0" in describe(drafted, SamplingParams(), INFO)


def test_stats_count_what_was_reused() -> None:
    output = replace(request_output("ab", [1, 2], finish_reason="stop", now=0.1), num_cached_tokens=1)
    assert describe(output, SamplingParams(), INFO).startswith("[2 + 2 tokens · 1 reused · first after")
    assert request_metrics(output)["num_cached_tokens"] == 1


def test_json_is_one_object(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a", "ab", "äbc")
    result = invoke("generate", "hi", "--json", "--seed", "5")
    record = json.loads(result.stdout)
    assert record["prompt_token_ids"] == [7, 8]
    assert (record["text"], record["token_ids"]) == ("äbc", [0, 1, 2])
    assert (record["finish_reason"], record["seed"]) == ("stop", 5)
    assert record["metrics"]["ttft_s"] == pytest.approx(0.5)
    assert record["metrics"]["decode_tokens_per_s"] == pytest.approx(10.0)
    assert record["model"]["device"] == "fake:0"


def test_options_reach_the_model_and_the_sampler(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a")
    options = (
        "--model there --device cuda:1 --dtype bfloat16 --load-format dummy --max-model-len 32 --num-kv-blocks 2 "
        "--block-size 8 --threads 3 --max-tokens 9 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 "
        "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3 --n 2 --seed 8 "
        "--stop x --stop yy --ignore-eos"
    )
    assert invoke("generate", "hi", *options.split()).exit_code == 0
    wanted = {
        "model": "there",
        "device": "cuda:1",
        "dtype": "bfloat16",
        "load_format": "dummy",
        "max_model_len": 32,
        "num_kv_blocks": 2,
        "block_size": 8,
        "num_threads": 3,
    }
    assert wanted.items() <= llm.options.items()
    (params,) = llm.params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (9, 0.5, 4, 0.9)
    assert (params.min_p, params.repetition_penalty, params.seed) == (0.1, 1.1, 8)
    assert (params.presence_penalty, params.frequency_penalty, params.n) == (0.2, 0.3, 2)
    assert (params.stop, params.ignore_eos) == (("x", "yy"), True)


def test_short_flags_are_those_of_other_programs(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a")
    assert invoke("generate", "hi", *["-m", "there", "-t", "3", "-c", "32", "-n", "-1", "--temp", "0.5"]).exit_code == 0
    assert {"model": "there", "num_threads": 3, "max_model_len": 32}.items() <= llm.options.items()
    assert (llm.params[0].max_tokens, llm.params[0].temperature) == (None, 0.5)


def test_several_answers_with_logprobs_of_alternatives(invoke: Any) -> None:
    words = ("generate", "Once upon a time", *SEED, "--dtype", "float32")
    one = json.loads(invoke(*words, "--json").stdout)
    two = json.loads(invoke(*words, "--n", "2", "--logprobs", "2", "--json").stdout)
    assert "answers" not in one
    assert two["text"] == one["text"] == two["answers"][0]["text"]
    assert two["answers"][1]["text"] != one["text"]
    first = two["logprobs"][0]
    assert (first["token_id"], len(first["candidates"]) >= 2) == (two["token_ids"][0], True)
    assert [one["rank"] for one in first["candidates"]][:2] == [1, 2]
    assert invoke(*words, "--n", "2").stdout == "".join(f"{answer['text']}\n" for answer in two["answers"])
    remarks = invoke(*words, "--n", "2", "--stats").stderr.splitlines()
    assert [line for line in remarks if " of 2]" in line] == ["[1 of 2]", "[2 of 2]"]
    refused = invoke("generate", "hi", "--logprobs", "2")
    assert (refused.exit_code, "--json" in refused.stderr) == (2, True)


def test_defaults_are_the_model_s_then_the_command_s(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a")
    llm.sampling_defaults = {"temperature": 0.9, "top_k": 7, "max_tokens": 5}
    assert invoke("generate", "hi", "--top-k", "3", "--temperature", "0").exit_code == 0
    assert invoke("generate", "hi").exit_code == 0
    fields = ("temperature", "top_k", "max_tokens", "top_p", "min_p", "repetition_penalty")
    given, defaults = ([getattr(params, name) for name in fields] for params in llm.params)
    assert given == [0, 3, 5, 1, 0, 1]
    assert defaults == [0.9, 7, 5, 1, 0, 1]
    llm.sampling_defaults = {}
    invoke("generate", "hi")
    assert [getattr(llm.params[-1], name) for name in fields] == [0.7, 0, 200, 1, 0, 1]


def test_help_says_where_defaults_come_from(invoke: Any) -> None:
    text = " ".join(invoke("generate", "--help").stdout.split())
    assert "generation_config.json" in text
    for default in ("0.7", "200"):
        assert f"the model's, or {default})]" in text


def test_model_comes_from_the_environment_then_is_the_demo(
    invoke: Any, fake_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake_llm("a")
    monkeypatch.delenv("AETHERMIND_MODEL", raising=False)
    invoke("generate", "hi")
    assert llm.options["model"] == "demo"
    monkeypatch.setenv("AETHERMIND_MODEL", "elsewhere")
    invoke("generate", "hi")
    assert llm.options["model"] == "elsewhere"


def test_prompts_from_stdin_and_files_lose_one_newline(invoke: Any, fake_llm: Any, tmp_path: Path) -> None:
    llm = fake_llm("a")
    invoke("generate", "-", input="Grüße\n\n")
    (tmp_path / "prompt.txt").write_text("two\nlines\n")
    invoke("generate", "--prompt-file", str(tmp_path / "prompt.txt"))
    assert llm.prompts == ["Grüße\n", "two\nlines"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), ["no prompt", "--prompt-file"]),
        (("hi", "--prompt-file", "x"), ["two prompts"]),
        (("--prompt-file", "missing.txt"), ["missing.txt", "No such file"]),
        (("hi", "--temperature", "-1"), ["temperature", "-1.0"]),
        (("hi", "--top-p", "2"), ["--top-p is 2.0"]),
        (("hi", "--max-tokens", "0"), ["--max-tokens is 0"]),
        (("hi", "--min-p", "1.5"), ["--min-p is 1.5"]),
        (("hi", "--repetition-penalty", "0"), ["--repetition-penalty is 0.0"]),
        (("hi", "--seed", "-1"), ["seed", "-1"]),
        (("hi", "--stop", ""), ["stop"]),
        (("hi", "--device", "abacus"), ["abacus", "numpy"]),
        (("hi", "--model", "nothing-like-it"), ["nothing-like-it", "demo"]),
        (("hi", "--load-format", "wishful"), ["--load-format", "wishful"]),
        (("hi", "--quantization", "int0"), ["'int0'", "Did you mean", "int4"]),
        (("hi", "--lm-head-quantization", "int8_chanel"), ["'int8_chanel'", "Did you mean int8_channel"]),
        (("hi", "--threads", "0"), ["--threads should be", "0"]),
        (("hi", "--device", "numpy", "--dtype", "int8"), ["int8"]),
        (("", "--device", "numpy"), ["prompt is empty"]),
    ],
)
def test_bad_values_are_one_sentence(invoke: Any, args: tuple[str, ...], words: list[str]) -> None:
    result = invoke("generate", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_prompt_that_is_not_text(invoke: Any) -> None:
    result = invoke("generate", "-", input=b"ab\xff")
    assert result.exit_code == 2
    assert "byte 2" in result.stderr


def test_an_interrupt_keeps_the_partial_answer(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a", "ab", KeyboardInterrupt())
    result = invoke("generate", "hi", "--stats")
    assert result.exit_code == 130
    assert result.stdout == "ab\n"
    assert "2 + 2 tokens" in result.stderr
    assert llm.is_stream_closed
    assert llm.is_closed


def test_interrupted_json_has_finish_reason_abort(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a", KeyboardInterrupt())
    result = invoke("generate", "hi", "--json")
    assert result.exit_code == 130
    record = json.loads(result.stdout)
    assert record["finish_reason"] == "abort"
    assert record["metrics"]["decode_tokens_per_s"] is None


def test_interrupt_before_the_first_token(invoke: Any, fake_llm: Any) -> None:
    fake_llm(KeyboardInterrupt())
    result = invoke("generate", "hi", "--stats")
    assert (result.exit_code, result.output) == (130, "")


def test_demo_model_answers_the_same_for_a_seed(invoke: Any) -> None:
    streamed = invoke("generate", "Once upon a time", *SEED)
    assert streamed.exit_code == 0, streamed.stderr
    assert streamed.stdout.strip()
    record = json.loads(invoke("generate", "Once upon a time", *SEED, "--json").stdout)
    assert record["text"].rstrip("\n") == streamed.stdout.rstrip("\n")
    assert len(record["token_ids"]) <= 6
    assert record["model"]["architecture"] == "Qwen2ForCausalLM"


def generate_process() -> subprocess.Popen[bytes]:
    args = ("generate", "Once upon a time", "--device", "numpy", "--ignore-eos", "--max-tokens", "1500")
    return subprocess.Popen([sys.executable, "-m", "aethermind", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_ends_cleanly() -> None:
    with generate_process() as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors == b""
    assert rest.endswith(b"\n")


def test_closed_pipe_is_quiet() -> None:
    with generate_process() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) != 0


def test_given_lengths_override_the_model_s(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a")
    llm.sampling_defaults = {"min_tokens": 300}
    assert invoke("generate", "hi").exit_code == 0
    assert invoke("generate", "hi", "--max-tokens", "5").exit_code == 0
    assert [(params.min_tokens, params.max_tokens) for params in llm.params] == [(300, 300), (5, 5)]


@pytest.mark.parametrize(
    "prompt", ["Qwen/Qwen3-0.6B", "./my-model", "../m", "~/models/m", "/srv/m", "model-Q4_K_M.gguf", "."]
)
def test_a_prompt_that_looks_like_a_model_is_remarked_on(invoke: Any, fake_llm: Any, prompt: str) -> None:
    llm = fake_llm("a")
    asked = invoke("generate", prompt)
    assert (asked.exit_code, asked.stdout, llm.prompts) == (0, "a\n", [prompt])
    assert f"{prompt} is taken as the text, for the model demo." in asked.stderr
    assert f"aethermind generate --model {shlex.quote(prompt)}" in asked.stderr
    assert invoke("generate", prompt, "--model", "demo").stderr == "", "a model was named"
    refused = invoke("generate", prompt, "Once upon")
    assert refused.exit_code == 2
    assert f"--model {shlex.quote(prompt)} 'Once upon'" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("prompt", ["Once upon a time", "either/or it is", "3.5", "hello", "What is ./a?", "a\0b"])
def test_other_prompts_are_not_remarked_on(invoke: Any, fake_llm: Any, prompt: str) -> None:
    fake_llm("a")
    assert invoke("generate", prompt).stderr == ""


def test_a_piped_text_needs_no_dash() -> None:
    command = [sys.executable, "-m", "aethermind", "generate", *SEED, "--json"]
    result = subprocess.run(command, input="Once upon\n", capture_output=True, text=True, check=False)
    assert json.loads(result.stdout)["prompt"] == "Once upon"
    nothing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (nothing.returncode, "Found no prompt." in nothing.stderr) == (2, True)


def test_control_characters_are_not_sent_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aethermind.cli.console.is_terminal", lambda _: True)
    stream = io.StringIO()
    TextWriter(stream).finish("a\x1b[31mred\x07\x9b2J\tb\r\nc\x7f")
    assert stream.getvalue() == "a\u241b[31mred\u2407\ufffd2J\tb\nc\u2421\n"
    monkeypatch.setattr("aethermind.cli.console.is_terminal", lambda _: False)
    piped = io.StringIO()
    TextWriter(piped).finish("a\x1b[31mred")
    assert piped.getvalue() == "a\x1b[31mred\n", "a pipe gets what the model wrote"
