"""The project's vocabulary: private words and retired identifiers, and how often they and the field's terms occur.

    python -m tests.architecture.vocabulary [COMMIT] [--json]

Without COMMIT the working tree is counted, with it what `git archive` has of that commit.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.sources import ROOT

__all__ = [
    "FIELD_TERMS",
    "PRIVATE_WORDS",
    "RETIRED_IDENTIFIERS",
    "SCOPES",
    "count",
    "files_of_commit",
    "files_of_tree",
    "main",
    "scope_of",
]

PRIVATE_WORDS: dict[str, str] = {
    "told": r"told",
    "room": r"rooms?",
    "nobody": r"nobody(?:'s)?",
    "news": r"news",
    "stay": r"stay(?:s|ed|ing)?",
    "whoever": r"whoever",
    "stretch": r"stretch(?:es|ed)?",
    "giver": r"givers?",
    "stranger": r"strangers?(?:')?",
    "wish": r"wish(?:es|ed)?",
    "door": r"doors?",
    "house": r"houses?",
    "floor": r'(?<![.:"])floors?(?! (?:div|p[sd]\b)|\()',
}
"""Words that a reader from the field has to guess: patterns of whole words, without regard to case.

The words of an identifier count (`has_news`, `AnswerRoom`). The floor of a number (`math.floor(`, floor
division) does not.
"""

RETIRED_IDENTIFIERS: tuple[str, ...] = (
    "HeldNews",
    "held_news",
    "GivingWay",
    "giving_way",
    "givers",
    "MeasuredCosts",
    "GrowingOutput",
    "Told",
    "AnswerRoom",
    "ResponseWish",
    "EndedBy",
    "ended_by",
    "give_way",
    "IdleTurns",
    "idle_turns",
    "ModelFace",
    "model_face",
    "kept_files",
    "write_whole",
    "by_use",
    "kept_tables",
    "KeptAnswers",
    "kept_answers",
    "KeptConstants",
    "KeptBlocks",
    "try_strangers",
    "is_ours",
    "Complaints",
    "StoreHealth",
    "vouch",
    "Residency",
    "TokenTally",
    "TokenControls",
    "endless_rules",
    "written_call",
    "TokenMemory",
    "for_each_stretch",
    "turn_keys",
    "FedInput",
    "fed_tokens",
    "run_filling",
    "RunningStep",
    "is_deserted",
    "share_prompts",
    "needs_scores",
    "rows_without_number",
    "Softened",
    "soften_tile",
    "join_part",
    "SeenKeys",
    "gemm_engines",
    "gemm_blocks",
    "gemm_many_rows",
    "kFewRows",
    "has_long_blocks",
    "quantize_finely",
    "quantize_coarsely",
    "hold_up",
    "kEight",
    "row_descent",
    "coded_weight",
    "coded_weights",
    "bound_steps",
)
"""Names of modules, classes and functions that were replaced by the field's terms."""

FIELD_TERMS: tuple[str, ...] = (
    "evict",
    "coalesce",
    "backpressure",
    "preempt",
    "heartbeat",
    "microkernel",
    "GEMV",
    "epilogue",
    "accumulator",
    "tile",
    "scratch",
    "prefix cache",
    "TTFT",
    "TPOT",
    "chunked prefill",
    "draft",
    "batch invariance",
    "victim",
)
"""Terms that the field searches for, counted with every ending."""

SCOPES = ("sources", "tests", "docs")
_SUFFIXES = {".py", ".h", ".cc", ".cu", ".cuh", ".ts", ".tsx", ".css", ".md", ".toml"}
_SOURCE = re.compile(
    r"aethermind-[^/]+/(?:src|csrc|webui/src)/|examples/[^/]+/(?!tests/)|aethermind-[^/]+/[^/]+\.(?:py|md)$"
)
_TESTS = re.compile(r"tests/|examples/[^/]+/tests/")
_DOCS = re.compile(r"docs/|[^/]+\.md$")
_GENERATED = re.compile(r"/server/web/|/node_modules/|/build/|(?:^|/)\.|\.egg-info/|^aethermind-\w+/build/")
_OWN = "tests/architecture/"
_WORD_PARTS = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


def scope_of(path: str) -> str | None:
    """Which scope a file of the tree belongs to; None for what is generated, data, or this vocabulary itself."""
    if Path(path).suffix not in _SUFFIXES or _GENERATED.search(f"/{path}") or path.startswith(_OWN):
        return None
    patterns = (("sources", _SOURCE), ("tests", _TESTS), ("docs", _DOCS))
    return next((scope for scope, pattern in patterns if pattern.match(path)), None)


def files_of_tree() -> Iterator[tuple[str, str]]:
    """Path and text of each file of the working tree that has a scope."""
    folders = [*ROOT.glob("aethermind-*"), *(ROOT / name for name in ("examples", "docs", "tests"))]
    found = [*(path for folder in folders for path in folder.rglob("*")), *ROOT.glob("*.md")]
    for path in sorted(found):
        name = path.relative_to(ROOT).as_posix()
        if scope_of(name) is not None and path.is_file():
            yield name, path.read_text(encoding="utf-8")


def files_of_commit(commit: str) -> Iterator[tuple[str, str]]:
    """Path and text of each file of a commit that has a scope."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if scope_of(member.name) is not None and (content := files.extractfile(member)) is not None:
                yield member.name, content.read().decode()


def count(files: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Count every word by scope: identifiers in their own case, words in any."""
    words = {**PRIVATE_WORDS, **{term: rf"{re.escape(term)}\w*" for term in FIELD_TERMS}}
    prose = re.compile("|".join(rf"(?P<w{i}>\b{pattern}\b)" for i, pattern in enumerate(words.values())), re.IGNORECASE)
    names = list(words)
    identifiers = re.compile(rf"\b(?:{'|'.join(map(re.escape, RETIRED_IDENTIFIERS))})\b")
    counts: dict[str, Counter[str]] = {scope: Counter() for scope in SCOPES}
    for path, text in files:
        scope = scope_of(path)
        assert scope is not None
        counts[scope].update(
            names[int(str(found.lastgroup)[1:])] for found in prose.finditer(_WORD_PARTS.sub(" ", text))
        )
        counts[scope].update(found[0] for found in identifiers.finditer(text))
    return counts


def main() -> None:
    """Print the counts of a commit or of the working tree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("commit", nargs="?", help="the commit to count; by default the working tree")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    counts = count(files_of_tree() if options.commit is None else files_of_commit(options.commit))
    if options.json:
        print(json.dumps(counts, indent=2))
        return
    print(f"{'':22}" + "".join(f"{scope:>9}" for scope in SCOPES))
    for word in (*PRIVATE_WORDS, *FIELD_TERMS, *RETIRED_IDENTIFIERS):
        if any(counts[scope][word] for scope in SCOPES) or word in FIELD_TERMS:
            print(f"{word:22}" + "".join(f"{counts[scope][word]:9}" for scope in SCOPES))


if __name__ == "__main__":
    main()
