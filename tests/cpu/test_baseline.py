"""The native module runs on every x86-64-v2 CPU: only the units of higher levels, chosen at run time, need more."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from tests.architecture.sources import ROOT

from aethermind_cpu.isa import Isa

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
# Older CPUs execute tzcnt as bsf, which has the same result for nonzero operands: compilers use it everywhere.
BEYOND_V2 = re.compile(
    r"^\s*[0-9a-f]+:\s+(v[a-z]\w*|k(?:mov|and|or|xor|not|test|shift|unpck|add)\w*|"
    r"(?:andn|bextr|blsi|blsmsk|blsr|bzhi|lzcnt|mulx|pdep|pext|rorx|sarx|shlx|shrx|movbe)[lqw]?)(?:\s|$)"
)
LEVELS = "|".join(isa.label.replace("_", "_?") for isa in Isa if isa.features)
# Namespaces of levels, and functions that are named after a level.
OF_A_LEVEL = re.compile(rf"\baether::cpu::(?:\w+_)?(?:{LEVELS})(?:::|\()")


def test_only_level_units_use_instructions_beyond_the_baseline() -> None:
    built = [*ROOT.glob(f"aethermind-cpu/build/{sys.implementation.cache_tag}/_native*.so")]
    if not built or shutil.which("objdump") is None:
        pytest.skip(
            "Needs objdump and what `make test-env` leaves in aethermind-cpu/build: the installed module has no names."
        )
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(built[0])]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "x86-64" not in listing[:200]:
        pytest.skip("The baseline of other architectures has no levels above it that an instruction's name tells.")
    within, outside, function = 0, Counter[str](), ""
    for line in listing.splitlines():
        if start := FUNCTION.match(line):
            function = start[1]
        elif instruction := BEYOND_V2.match(line):
            if OF_A_LEVEL.search(function):
                within += 1
            else:
                outside[f"{instruction[1]} in {function}"] += 1
    assert not outside
    assert within > 10_000, "the levels are there at all"
