"""What plugins print while a command starts is not part of what the command prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind.plugins.stdout_guard import stdout_to_stderr

NOISY = """
    import ctypes, os, subprocess, sys
    print("banner at import")
    os.write(1, b"bytes at import\\n")
    ctypes.CDLL(None).puts(b"C at import")  # in C's buffer until that is emptied
    subprocess.run(["echo", "child at import"])

    def open_backend():
        print("banner at open")
        backend = NullBackend()
        backend.name = "noisy"
        return backend

    def load_kernels():
        print("banner at kernels")
        return []

    @hookimpl
    def register_devices(registry):
        print("banner in a hook")
        registry.register("noisy", probe=lambda: Probe(1, "here."), open=open_backend, provider="fake-noisy")

    @hookimpl
    def register_kernels(registry):
        registry.register("noisy", load_kernels, provider="fake-noisy")

    @hookimpl
    def register_kv_stores(registry):
        sys.stdout.write("no newline in a hook")

    @hookimpl
    def register_commands(app):
        @app.command("noise")
        def noise():
            print("said by the command")

        @app.command("other")
        def other():
            pass
"""


def run(fakes: FakeDistributions, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(fakes.folder)}
    command = [sys.executable, "-m", "aethermind", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)


def test_json_output_is_valid_beside_a_plugin_that_prints(fakes: FakeDistributions) -> None:
    fakes.install("noisy", NOISY)
    for arguments in (["plugins", "list", "--json"], ["doctor", "--json"]):
        result = run(fakes, *arguments)
        assert json.loads(result.stdout)["plugins"]
        for what in ("banner at import", "bytes at import", "C at import", "child at import", "in a hook"):
            assert what in result.stderr


def test_opening_a_device_and_loading_its_kernels_print_nothing(fakes: FakeDistributions) -> None:
    fakes.install("noisy", NOISY)
    code = "from aethermind import Runtime; Runtime.boot().open_device('noisy'); print('{}')"
    environment = {**os.environ, "PYTHONPATH": str(fakes.folder)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "{}\n"
    assert "banner at open" in result.stderr
    assert "banner at kernels" in result.stderr


def test_a_plugin_s_command_prints_to_standard_output(fakes: FakeDistributions) -> None:
    fakes.install("noisy", NOISY)
    assert run(fakes, "noise").stdout == "said by the command\n"


def test_output_before_and_after_a_redirection_is_unaffected(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ")
    with stdout_to_stderr():
        print("within")
        with stdout_to_stderr():
            os.write(1, b"deep within\n")
        print("still within")
    print("after")
    out, err = capfd.readouterr()
    assert out == "before after\n"
    assert err == "within\ndeep within\nstill within\n"


def test_concurrent_loads_restore_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """The first to enter is the first to leave, while another is still inside."""
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with stdout_to_stderr():
            first_is_in.set()
            assert second_is_in.wait(60)
        first_is_out.set()

    def second() -> None:
        assert first_is_in.wait(60)
        with stdout_to_stderr():
            second_is_in.set()
            assert first_is_out.wait(60)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    os.write(1, b"back\n")
    print("again")
    assert capfd.readouterr() == ("back\nagain\n", "")
