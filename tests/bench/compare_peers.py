"""AetherMind beside other engines: the same shapes, in turn, with the machine's limits measured around each round.

    python -m tests.bench.compare_peers --peers PEERS --models q05=CHECKPOINT --rounds 5 --json samples.json

CHECKPOINT is a Hugging Face directory (random weights in the true shapes will do), or a GGUF file that both AetherMind
and llama.cpp read (`tests.bench.random_gguf` writes some). PEERS is a folder with what other
engines need; one that is not there is named, and left out with --skip-missing. All are installed under public names:

    PEERS/ov          a virtual environment: pip install openvino-genai optimum-intel nncf
    PEERS/ort         a virtual environment: pip install onnxruntime-genai onnx onnx-ir torch transformers
    PEERS/llama-py    a virtual environment: pip install llama-cpp-python torch transformers sentencepiece
    PEERS/llama       llama.cpp's programs and libraries, built from the source distribution of llama-cpp-python:
        pip download --no-binary :all: --no-deps llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
        cmake -S llama_cpp_python-*/vendor/llama.cpp -B PEERS/llama -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
        cmake --build PEERS/llama --target llama llama-completion llama-quantize

    PEERS/models      what each made of the checkpoint, for --models q05=CHECKPOINT:
        convert_hf_to_gguf.py CHECKPOINT --outtype bf16 --outfile q05-llama-bf16.gguf     (in vendor/llama.cpp; and f16)
        llama-quantize q05-llama-bf16.gguf q05-llama-Q8_0.gguf Q8_0                       (and Q4_0, Q4_K_M)
        optimum-cli export openvino -m CHECKPOINT --task text-generation-with-past --weight-format int8 q05-ov-int8
                                                                                          (and int4, fp16)
        python -m onnxruntime_genai.models.builder -i CHECKPOINT -o q05-ort-int8 -p int8 -e cpu -c cache   (and int4)
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.peers.columns import COLUMNS, Column
from tests.bench.peers.measure import measure, measure_limits
from tests.bench.peers.roster import PRECISIONS, roster
from tests.bench.peers.table import Sample, render

NOBODY = 2


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the table of all samples there are; 2 where somebody is missed or nobody is there."""
    options = _parser().parse_args(arguments)
    samples = _read(options.json) if options.json else []
    for model, checkpoint in options.models:
        everybody = roster(options.peers, checkpoint, model, options.threads)
        wanted = [one for one in everybody if one.precision in options.precisions]
        missed = [one for one in wanted if one.missing]
        for one in missed:
            _say(f"{one.name} is not installed: there is no {one.missing[0]}.")
        present = [one for one in wanted if not one.missing]
        if all(one.is_ours for one in present):
            _say(f"No peer is installed for {model} under {options.peers}; --help tells how to get one.")
            return NOBODY
        if missed and not options.skip_missing:
            _say("Install what is missing (see --help), or pass --skip-missing to compare with the others.")
            return NOBODY
        for precision in options.precisions:
            contestants = [one for one in present if one.precision == precision]
            limits = partial(measure_limits, options.threads)
            for sample in measure(model, contestants, options.only, options.rounds, limits, _say):
                samples.append(sample)
                _write(options.json, samples)
    if not samples:
        _say("There is nothing to show: name a model with --models, or a file of samples with --json.")
        return NOBODY
    print(render(samples))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="the folder described above (default: peers)")
    parser.add_argument(
        "--models",
        type=_model,
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="checkpoints, and their names in PEERS/models; without any, the samples of --json are shown",
    )
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument(
        "--only",
        type=_column,
        nargs="+",
        default=COLUMNS,
        metavar="COLUMN",
        help=f"columns to measure: {', '.join(column.name for column in COLUMNS)}",
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="jobs of each engine and column (default: 5)")
    parser.add_argument("--threads", type=_positive, default=2, help="threads of every engine (default: 2)")
    parser.add_argument("--skip-missing", action="store_true", help="compare with those peers that are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep samples here, beside those already in it")
    return parser


def _model(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not (Path(path) / "config.json").is_file() and not (path.endswith(".gguf") and Path(path).is_file()):
        raise argparse.ArgumentTypeError(f"{text!r} should be NAME=DIR with a config.json in DIR, or NAME=FILE.gguf")
    return name, Path(path)


def _column(text: str) -> Column:
    for column in COLUMNS:
        if column.name == text:
            return column
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(column.name for column in COLUMNS)}")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} should be a whole number of at least 1")
    return int(text)


def _read(path: Path) -> list[Sample]:
    return [Sample(**record) for record in json.loads(path.read_text())["samples"]] if path.exists() else []


def _write(path: Path | None, samples: list[Sample]) -> None:
    if path is not None:
        path.write_text(json.dumps({"samples": [asdict(sample) for sample in samples]}, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
