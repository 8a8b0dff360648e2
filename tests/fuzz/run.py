"""Coverage-guided fuzzing of a reader: `python -m tests.fuzz.run gguf --seconds 30`.

Starts from valid files (`tests.fuzz.seeds`). Fails with whatever is raised that is no error of ours, with reads that
take longer than a few seconds, and with a process that grows beyond 1 GiB; the input that did it is written beside the
corpus. The corpus of a run is kept and makes the next one faster. Needs atheris, which has wheels for Linux.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris

_LONGEST_READ_S = 5
_MOST_MEMORY_MIB = 1024
_LONGEST_FILE = 16384


def main() -> None:
    """Fuzz one target until its time is over; exits with libFuzzer's code."""
    with atheris.instrument_imports(include=["aethermind.checkpoint", "aethermind.model.gguf", "aethermind.text.gguf"]):
        from tests.fuzz.targets import TARGETS, survives

        import aethermind.checkpoint.bitsandbytes
        import aethermind.checkpoint.compressed_tensors
        import aethermind.checkpoint.gguf_tensors
        import aethermind.checkpoint.gptq_awq
        import aethermind.checkpoint.hqq
        import aethermind.model.gguf_source
        import aethermind.text.gguf_tokenizer  # noqa: F401
    from tests.fuzz.seeds import write_seeds

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), help="Where inputs that matter are kept.")
    args = parser.parse_args()
    found, seeds = args.corpus / args.target, args.corpus / f"{args.target}-seeds"
    for directory in (found, seeds):
        directory.mkdir(parents=True, exist_ok=True)
    write_seeds(args.target, seeds)
    has_header = args.target in ("safetensors", "quantised")
    file = args.corpus / f"input.{'safetensors' if has_header else 'gguf'}"

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Every other time a safetensors header changes and its length follows, so that what lies behind is met."""
        begin = 8 + int.from_bytes(data[:8], "little")
        if not has_header or seed % 2 or begin > len(data):
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        header = atheris.Mutate(data[8:begin], max(max_size - 8 - len(data[begin:]), 1))
        return len(header).to_bytes(8, "little") + header + data[begin:]

    def read(data: bytes) -> None:
        file.unlink(missing_ok=True)  # one that is mapped must not change
        file.write_bytes(data)
        survives(TARGETS[args.target], file)

    options = {
        "max_total_time": args.seconds,
        "timeout": _LONGEST_READ_S,
        "rss_limit_mb": _MOST_MEMORY_MIB,
        "max_len": _LONGEST_FILE,
        "artifact_prefix": f"{args.corpus}/{args.target}-",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(found), str(seeds)], read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
