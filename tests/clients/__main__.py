"""`python -m tests.clients [NAME ...]`: the official clients, each in an environment of its own, against the server.

A suite is a script with its pinned dependencies (PEP 723). Its environment is below build/clients, and made again when
they change. The answers are forced (see `tests.clients.scripted`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from tests.clients.scripted import MODEL, scripted_server

HERE = Path(__file__).parent
SUITES = {path.stem.removeprefix("check_"): path for path in sorted((HERE / "suites").glob("check_*.py"))}
ENVIRONMENTS = HERE.parents[1] / "build" / "clients"
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "HF_HUB_OFFLINE": "1"}


def dependencies(suite: Path) -> list[str]:
    """The requirements in a script's inline metadata."""
    (block,) = re.findall(r"^# /// script\n((?:#.*\n)+?)# ///$", suite.read_text(), re.MULTILINE)
    found: list[str] = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))["dependencies"]
    return found


def python_of(name: str) -> Path:
    """The interpreter of a suite's environment, which is made if it is not there or has other requirements."""
    requirements = dependencies(SUITES[name])
    environment = ENVIRONMENTS / name
    python, stamp = environment / "bin" / "python", environment / "requirements.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(environment, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return python


def main(names: list[str]) -> int:
    """Run the suites of these names, or all; the exit code is 1 if any failed."""
    if unknown := set(names) - set(SUITES):
        print(f"There is no suite {', '.join(sorted(unknown))}. Choose of: {', '.join(SUITES)}.", file=sys.stderr)
        return 2
    failed = []
    for name in names or SUITES:
        command = [str(python_of(name)), str(SUITES[name])]
        with scripted_server() as address:
            if subprocess.run([*command, address, MODEL], env={**os.environ, **_OFFLINE}, check=False).returncode:
                failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
