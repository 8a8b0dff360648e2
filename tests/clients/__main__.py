"""`python -m tests.clients`: makes an environment for clients of others, and runs `suite.py` there against a server."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from tests.soak.server import started

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / "build" / "clients"


def main() -> int:
    """The suite's exit code."""
    python = ENVIRONMENT / "bin" / "python"
    requirements = HERE / "requirements.txt"
    stamp = ENVIRONMENT / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
        subprocess.run([*install, str(requirements)], check=True)
        stamp.write_text(requirements.read_text())
    with started(["--max-model-len", "512"]) as server:
        suite = [str(python), str(HERE / "suite.py"), f"{server.url}/v1", server.model]
        return subprocess.run(suite, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
