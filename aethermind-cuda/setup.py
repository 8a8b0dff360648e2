"""Builds wheels with compiled kernels. The kernels are compiled before the files of the package are collected.

`AETHERMIND_CUDA_TARGETS` (such as `90a`, or `none`) replaces the list of targets: a wheel for one's own machine is
built in a fraction of the time. An editable install compiles nothing; run `make cuda-kernels` then.
"""

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))
from build_kernels import TARGETS, build

_TARGETS = os.environ.get("AETHERMIND_CUDA_TARGETS", ",".join(TARGETS) if sys.platform == "linux" else "none")


class BuildWithKernels(build_py):
    """`build_py` that compiles the kernels first."""

    def run(self) -> None:
        if not self.editable_mode and _TARGETS != "none":
            build(_TARGETS.split(","), jobs=os.cpu_count() or 1)
        super().run()


setup(cmdclass={"build_py": BuildWithKernels})
