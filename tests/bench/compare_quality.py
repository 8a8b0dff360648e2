"""What weight formats cost in quality, ours beside llama.cpp's of equal size: logits against those of dense float32.

    python tests/bench/compare_quality.py                                     # the demo model
    python tests/bench/compare_quality.py --model DIR --tokens 256 --random   # a model of random weights
    python tests/bench/compare_quality.py --ggml build/bin/libggml-base.so    # K-quants too
    python tests/bench/compare_quality.py --embeddings Q8_0 int8              # a tied table of embeddings too
    python tests/bench/compare_quality.py --normal                            # only errors, on random weights

Every matrix goes through a format and back, a table of embeddings with `--embeddings` only, and transformers computes
with what comes out in float32: the same arithmetic for all, so that only the weights differ. Q8_0, Q4_0 and Q4_1 are
those of the `gguf` library, K-quants those of llama.cpp's own (`libggml-base`); rows that their blocks of 256 do not
fill are padded with zeros, where llama.cpp would take another type. Each line has the bits a weight, the root of the
mean squared error relative to that of the weights, and the KL divergence in nats and agreement as by
`aethermind bench quality`.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

import aethermind_qwen2
from aethermind.cli.bench.quality import compare_logits
from aethermind.ops.quantization import fake_quantize
from aethermind.ops.weight_format import parse_format

Array = np.ndarray[Any, Any]

DEMO = Path(aethermind_qwen2.__file__).parent / "demo"
STORIES = Path(__file__).parents[2] / "tools" / "demo-model" / "stories.py"
WINDOW = 128
EQUALS = (
    ("Q8_0", "int8"),
    ("Q4_0", "int4"),
    ("Q4_1", "int4_offset"),
    ("Q4_K", "int4_k"),
    ("", "int4_offset_g64"),
    ("", "int4_zp"),
    ("", "int4_zp_g64"),
    ("", "int4_g64"),
    ("", "int4_zp_g128"),
    ("", "int4_g128"),
    ("Q6_K", ""),
    ("Q2_K", "int2"),
)
"""llama.cpp's format and ours, side by side."""


@dataclass(frozen=True)
class Candidate:
    """A way to round a matrix [N, K], float32 in and out."""

    name: str
    bits_per_weight: float
    round: Callable[[Array], Array]


def ours(name: str) -> Candidate | None:
    format = parse_format(name)
    if format is None:
        return None
    return Candidate(name, format.bits_per_weight((1, 1 << 14)), partial(fake_quantize, format))


def theirs(name: str, library: ctypes.CDLL | None) -> Candidate | None:
    type = gguf.GGMLQuantizationType[name]
    block, nbytes = gguf.GGML_QUANT_SIZES[type]
    if name in ("Q8_0", "Q4_0", "Q4_1"):
        encode: Callable[[Array], Array] = lambda array: gguf.quantize(array, type)  # noqa: E731
    elif library is not None:
        encode = partial(_encode, library, type)
    else:
        return None

    def round_padded(array: Array) -> Array:
        columns = array.shape[1]
        padded = np.pad(array, ((0, 0), (0, -columns % block))).astype(np.float32)
        return np.ascontiguousarray(gguf.dequantize(encode(padded), type)[:, :columns])

    return Candidate(name, 8 * nbytes / block, round_padded)


def _encode(library: ctypes.CDLL, type: gguf.GGMLQuantizationType, array: Array) -> Array:
    """llama.cpp's own quantisation, without an importance matrix."""
    block, nbytes = gguf.GGML_QUANT_SIZES[type]
    rows, columns = array.shape
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    encoded = np.empty((rows, columns // block * nbytes), np.uint8)
    pointers = (array.ctypes.data_as(ctypes.c_void_p), encoded.ctypes.data_as(ctypes.c_void_p))
    one = ctypes.c_int64
    written = library.ggml_quantize_chunk(int(type), *pointers, one(0), one(rows), one(columns), None)
    assert written == encoded.nbytes
    return encoded


def candidates(library: ctypes.CDLL | None) -> Iterator[Candidate]:
    for their_name, our_name in EQUALS:
        found = (their_name and theirs(their_name, library), our_name and ours(our_name))
        yield from (one for one in found if one)


def windows_of(arguments: argparse.Namespace) -> list[list[int]]:
    if arguments.random:
        vocab_size = transformers.AutoConfig.from_pretrained(arguments.model).vocab_size
        ids = np.random.default_rng(0).integers(0, vocab_size, arguments.tokens).tolist()
    else:
        text = arguments.text.read_text() if arguments.text else _stories()
        ids = transformers.AutoTokenizer.from_pretrained(arguments.model)(text)["input_ids"][: arguments.tokens]
    return [ids[begin : begin + WINDOW] for begin in range(0, len(ids), WINDOW)]


def _stories() -> str:
    command = [sys.executable, str(STORIES), "--seed", "0", "--count", "64"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def logits_of(model: Any, windows: list[list[int]]) -> Array:
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in windows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--random", action="store_true", help="random tokens instead of a text")
    parser.add_argument("--embeddings", action="store_true", help="round tables of embeddings as well")
    parser.add_argument("--ggml", type=Path, help="llama.cpp's libggml-base, for K-quants")
    parser.add_argument("formats", nargs="*", help="only these")
    parser.add_argument("--normal", action="store_true", help="only the errors on random weights, without a model")
    arguments = parser.parse_args()
    library = ctypes.CDLL(str(arguments.ggml)) if arguments.ggml else None
    if arguments.normal:
        values = (np.random.default_rng(0).standard_normal((64, 4096)) * 0.02).astype(np.float32)
        for one in candidates(library):
            error = float(np.linalg.norm(one.round(values) - values) / np.linalg.norm(values))
            print(f"{one.name:<16}{one.bits_per_weight:>6.3f}{error:>11.5f}")
        return
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model.eval()
    windows = windows_of(arguments)
    expected = logits_of(model, windows)
    matrices = {
        name: (parameter, parameter.detach().numpy().copy())
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and (arguments.embeddings or "embed" not in name)
    }
    energy = sum(float((values.astype(np.float64) ** 2).sum()) for _, values in matrices.values())
    print(f"{arguments.model}, {len(expected)} tokens")
    print("format            bits  rms error   KL mean    KL p99   same top")
    for one in candidates(library):
        if arguments.formats and one.name not in arguments.formats:
            continue
        error = 0.0
        for parameter, values in matrices.values():
            found = one.round(values)
            error += float(((found - values).astype(np.float64) ** 2).sum())
            parameter.data = torch.from_numpy(found)
        result = compare_logits(expected, logits_of(model, windows))
        print(
            f"{one.name:<16}{one.bits_per_weight:>6.3f}{(error / energy) ** 0.5:>11.5f}{result.kl_mean:>10.3g}"
            f"{result.kl_p99:>10.3g}{result.top1_agreement:>11.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
