"""`python -m release.wheels`: every distribution of this tree as a wheel, and as a source archive when asked.

What has not changed since it was last built is kept. A build runs with what is installed beside this program, instead
of fetching its requirements into an environment of its own each time: the versions are those of constraints.txt, and
compiled objects are those that `make native-test` and the installation in `.venv` use, too.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from release.distributions import ROOT, Distribution, distributions, files_of

__all__ = ["BuildError", "WHEELHOUSE", "build_all"]

WHEELHOUSE = ROOT / "build/wheelhouse"
_LEDGER = "built-from.json"
_LOCK = "lock"


class BuildError(Exception):
    """A distribution could not be built; the message holds what the build printed."""


def build_all(
    wheelhouse: Path = WHEELHOUSE,
    *,
    kinds: Iterable[str] = ("wheel",),
    without: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Path]:
    """Build what has changed, with a line for each, and return the wheels by the names of their distributions.

    Those named in `without` are left out.

    Of two processes that fill one wheelhouse the second waits, and finds what the first has built.
    """
    wheelhouse.mkdir(parents=True, exist_ok=True)
    with open(wheelhouse / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build_all(wheelhouse, tuple(kinds), without, say)


def _build_all(
    wheelhouse: Path, kinds: Sequence[str], without: Collection[str], say: Callable[[str], None]
) -> dict[str, Path]:
    ledger = _Ledger(wheelhouse)

    def build(distribution: Distribution) -> Path:
        for kind in kinds:
            started = time.perf_counter()
            path = ledger.find(distribution, kind)
            if path is None:
                path = _build(distribution, kind, wheelhouse)
                ledger.note(distribution, kind, path)
                took = f"{time.perf_counter() - started:.1f} s"
            else:
                took = "unchanged"
            say(f"{path.name:<64} {path.stat().st_size / 2**20:6.2f} MiB  {took}")
        return ledger.wheel(distribution)

    selected = [distribution for distribution in distributions() if distribution.name not in without]
    longest_first = sorted(selected, key=lambda distribution: not distribution.is_compiled)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(
            zip((distribution.name for distribution in longest_first), pool.map(build, longest_first), strict=True)
        )


class _Ledger:
    """Which sources the files of a wheelhouse were built from."""

    def __init__(self, wheelhouse: Path) -> None:
        self._lock = Lock()
        self._path = wheelhouse / _LEDGER
        self._entries: dict[str, dict[str, str]] = {}
        if self._path.exists():
            self._entries = json.loads(self._path.read_text())

    def find(self, distribution: Distribution, kind: str) -> Path | None:
        """The file, if it was built from the sources as they are and by this Python."""
        entry = self._entries.get(f"{distribution.name} {kind}")
        if entry is None:
            return None
        path = self._path.parent / entry["file"]
        return path if entry["from"] == _origin(distribution) and path.exists() else None

    def wheel(self, distribution: Distribution) -> Path:
        return self._path.parent / self._entries[f"{distribution.name} wheel"]["file"]

    def note(self, distribution: Distribution, kind: str, path: Path) -> None:
        """Remember a new file, and remove the one it replaces."""
        key = f"{distribution.name} {kind}"
        with self._lock:
            before = self._entries.get(key)
            if before is not None and before["file"] != path.name:
                (self._path.parent / before["file"]).unlink(missing_ok=True)
            self._entries[key] = {"file": path.name, "from": _origin(distribution)}
            self._path.write_text(json.dumps(self._entries, indent=1, sort_keys=True))


def _origin(distribution: Distribution) -> str:
    """All that decides what is built: sources, the Python it is for, and variables that builds obey."""
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("AETHERMIND_")]
    return " ".join([sys.implementation.cache_tag or "", *variables, distribution.digest()])


def _build(distribution: Distribution, kind: str, wheelhouse: Path) -> Path:
    """Run the build backend; returns the file it made.

    Setuptools packs whatever an earlier build left in its folder, modules that are gone included, so it gets a copy of
    the sources. What is compiled is built where it is, because that is where its objects are kept.
    """
    _compile_in_place(distribution)
    with tempfile.TemporaryDirectory() as scratch:
        folder = distribution.folder
        if not distribution.is_compiled:
            folder = Path(scratch) / "source"
            for path in files_of(distribution):
                target = folder / path.relative_to(distribution.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        made = Path(scratch) / "made"
        options = ("--no-isolation", "--skip-dependency-check", f"--{kind}", "--outdir", str(made))
        command = [sys.executable, "-m", "build", *options, str(folder)]
        # A wheel may be taken to any machine.
        environment = {"AETHERMIND_CPU_LEVELS": "all", **os.environ}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if result.returncode:
            output = "\n".join((result.stdout + result.stderr).splitlines()[-30:])
            raise BuildError(f"The {kind} of {distribution.name} could not be built:\n{output}")
        (path,) = made.iterdir()
        return Path(shutil.move(path, wheelhouse / path.name))


def _compile_in_place(distribution: Distribution) -> None:
    """Bring device code that lies beside the sources up to date there, where the next build finds it again."""
    script = distribution.folder / "build_kernels.py"
    if script.is_file() and os.environ.get("AETHERMIND_CUDA_TARGETS") != "none":
        result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildError(
                f"The kernels of {distribution.name} could not be compiled:\n{result.stdout}{result.stderr}"
            )


def main() -> None:
    """Build into build/wheelhouse."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sdist", action="store_true", help="Build source archives, too.")
    parser.add_argument("--cuda", action="store_true", help="Build aethermind-cuda, too, with its kernels.")
    args = parser.parse_args()
    kinds = ("wheel", "sdist") if args.sdist else ("wheel",)
    without = () if args.cuda or "AETHERMIND_CUDA_TARGETS" in os.environ else ("aethermind-cuda",)
    if without:
        print("aethermind-cuda is left out, as its kernels take nvcc to compile; `make wheels CUDA=1` builds it, too.")
    try:
        build_all(kinds=kinds, without=without, say=lambda line: print(line, flush=True))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
