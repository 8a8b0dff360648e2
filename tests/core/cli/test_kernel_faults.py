"""A plugin's kernel that breaks its contract during a command is named in a one-line error."""

from __future__ import annotations

from typing import Any

import pytest

PLUGIN = """
from aethermind.hal import Probe
from aethermind.plugins import hookimpl

def open_backend():
    from aethermind.hal.builtin_backends import NumpyBackend
    backend = NumpyBackend()
    backend.name = "odd"
    return backend

@hookimpl
def register_devices(registry):
    registry.register("odd", probe=lambda: Probe(1, "always"), open=open_backend, provider="fake-odd")

@hookimpl
def register_kernels(registry):
    registry.register("odd", kernels, provider="fake-odd")

def kernels():
    from aethermind.dispatch import Kernel
    from aethermind.hal import DType
    return [Kernel("silu", "odd", "odd/silu", frozenset({{DType.FLOAT32}}), function=silu{more})]

def silu(inputs, outputs, attributes):
    {body}
"""

KERNEL = "Error: Kernel 'odd/silu' for silu of fake-odd "


@pytest.mark.parametrize(
    ("body", "more", "message"),
    [
        ("raise ValueError('kernel says no')", "", f"{KERNEL}raised ValueError: kernel says no. Update or uninstall"),
        ("return [inputs[0] * 2]", "", f"{KERNEL}returned list instead of None: a kernel writes its results into"),
        ("outputs[0][...] = inputs[0] @ inputs[0]", "", f"{KERNEL}raised ValueError: matmul: "),
        (
            "pass",
            ", supports=lambda call: True",
            "Error: `supports` of kernel 'odd/silu' for silu of fake-odd returned",
        ),
        ("outputs[0][...] = float('nan')", "", "Error: Request 0 cannot go on: the model's logits are not finite"),
    ],
)
def test_the_error_names_kernel_and_package(
    invoke: Any, install_plugin: Any, body: str, more: str, message: str
) -> None:
    install_plugin("odd", PLUGIN.format(body=body, more=more))
    result = invoke("generate", "hi", "--device", "odd", "--dtype", "float32", "--fallback", "allow")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert line.startswith(message)
    assert "This is a bug" not in result.stderr
