"""Who is compared: each engine in each precision, and where its parts lie on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["PRECISIONS", "Contestant", "roster"]

PRECISIONS = ("bf16", "int8", "int4")
ENGINES = Path(__file__).parent / "engines"
PROMPT = "Once upon a time"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of the table: an engine with a model in one of its formats.

    `command` starts the process that measures; `start_command` answers a short prompt with one token and ends (None:
    the measuring process is the only way). `parts` are the paths without which it is not installed.
    """

    name: str
    precision: str
    command: tuple[str, ...]
    parts: tuple[Path, ...]
    start_command: tuple[str, ...] | None = None
    is_ours: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[Path]:
        """What has to be there and is not."""
        return [part for part in self.parts if not part.exists()]


def roster(peers: Path, checkpoint: Path, model: str, threads: int) -> list[Contestant]:
    """Everybody for one model. `peers` is the folder that `compare_peers.py --help` tells how to fill.

    A GGUF file of 4 bits is compared with llama.cpp alone, which reads the same file.
    """
    if checkpoint.suffix == ".gguf":
        return [
            _aethermind(checkpoint, threads, "AetherMind, the file's formats", "int4", {}),
            _llama(peers, checkpoint, threads, "llama.cpp, the same file", "int4"),
        ]
    found = [
        *(_aethermind(checkpoint, threads, *row) for row in OURS),
        *(
            _llama(peers, peers / f"models/{model}-llama-{stored}.gguf", threads, f"llama.cpp {stored}", precision)
            for stored, precision in LLAMA
        ),
        *(_openvino(peers, model, threads, *row) for row in OPENVINO),
        *(_onnxruntime(peers, model, threads, *row) for row in ONNXRUNTIME),
    ]
    return sorted(found, key=lambda one: (PRECISIONS.index(one.precision), not one.is_ours))


OURS: list[tuple[str, str, dict[str, str]]] = [
    ("AetherMind bf16", "bf16", {}),
    ("AetherMind int8", "int8", {"quantization": "int8"}),
    ("AetherMind int8_channel", "int8", {"quantization": "int8_channel"}),
    ("AetherMind int4, head int8", "int4", {"quantization": "int4", "lm_head_quantization": "int8"}),
    ("AetherMind int4, head int4", "int4", {"quantization": "int4", "lm_head_quantization": "int4"}),
    (
        "AetherMind int4_zp_g128, head int8_channel",
        "int4",
        {"quantization": "int4_zp_g128", "lm_head_quantization": "int8_channel"},
    ),
]
LLAMA = [("bf16", "bf16"), ("f16", "bf16"), ("Q8_0", "int8"), ("Q4_0", "int4"), ("Q4_K_M", "int4")]
OPENVINO = [("fp16", "bf16"), ("int8", "int8"), ("int4", "int4")]
ONNXRUNTIME = [("int8", "int8"), ("int4", "int4")]
_AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""pip compiles modules when it installs them; those of a source tree are compiled by the first start, if it may."""


def _aethermind(checkpoint: Path, threads: int, name: str, precision: str, options: dict[str, str]) -> Contestant:
    flags = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
    start = [sys.executable, "-m", "aethermind", "generate", PROMPT, "--model", str(checkpoint), "--max-tokens", "1"]
    return Contestant(
        name,
        precision,
        _command(sys.executable, "run_aethermind.py", checkpoint, threads, options),
        (checkpoint,),
        (*start, "--threads", str(threads), *flags),
        is_ours=True,
        environment=_AS_INSTALLED,
    )


def _llama(peers: Path, gguf: Path, threads: int, name: str, precision: str) -> Contestant:
    python, libraries = peers / "llama-py/bin/python", peers / "llama/bin"
    completion = libraries / "llama-completion"
    start = [str(completion), "-m", str(gguf), "-p", PROMPT, "-n", "1", "-c", "2304", "-t", str(threads)]
    return Contestant(
        name,
        precision,
        _command(python, "run_llama.py", gguf, threads, {}),
        (python, libraries / "libllama.so", gguf),
        (*start, "-no-cnv", "--no-warmup") if completion.exists() else None,
        environment={"LLAMA_CPP_LIB_PATH": str(libraries)},
    )


def _openvino(peers: Path, model: str, threads: int, weights: str, precision: str) -> Contestant:
    python, folder = peers / "ov/bin/python", peers / f"models/{model}-ov-{weights}"
    name = "OpenVINO GenAI " + ("fp16→bf16" if weights == "fp16" else weights)
    return Contestant(name, precision, _command(python, "run_openvino.py", folder, threads, {}), (python, folder))


def _onnxruntime(peers: Path, model: str, threads: int, weights: str, precision: str) -> Contestant:
    python, folder = peers / "ort/bin/python", peers / f"models/{model}-ort-{weights}"
    command = _command(python, "run_onnxruntime.py", folder, threads, {})
    return Contestant(f"ONNX Runtime GenAI {weights}", precision, command, (python, folder))


def _command(python: str | Path, script: str, model: Path, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
    flags = ["--model", str(model), "--threads", str(threads), "--options", json.dumps(options)]
    return (str(python), str(ENGINES / script), *flags)
