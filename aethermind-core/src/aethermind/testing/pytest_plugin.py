"""The pytest plugin of the kit: options, fixtures and parameters of the suites, and the report of results.

pytest --pyargs aethermind.testing.suites -p aethermind.testing.pytest_plugin --backend NAME
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from aethermind.dispatch import Fallback, Kernel
from aethermind.dispatch.registry import unusable_kernels
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.graph.tensor_parallel.collectives import with_collectives
from aethermind.hal import Backend, DeviceId
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.families import Checkpoints, ModelCase, cases_of, checks_of
from aethermind.testing.families.case import architectures_of
from aethermind.testing.kernel_cases import KernelGroup, kernel_cases, kernel_groups
from aethermind.testing.kernel_invariants import has_separable_rows
from aethermind.testing.operator_calls import KernelCase
from aethermind.testing.report import CaseResult, Expectations, Outcome, read_expectations

__all__ = ["EXPECTATIONS_FILE"]

EXPECTATIONS_FILE = "conformance.toml"
_PLUGIN = "aethermind-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("aethermind")
    group.addoption("--backend", help="the device to test, such as cpu or mychip:1")
    group.addoption(
        "--model-package", help="test a model family (a plugin or an architecture), on numpy without --backend"
    )
    group.addoption("--conformance-model", default="demo", help="the model of the models suite")
    group.addoption(
        "--expectations", help=f"the file of expected failures; by default the {EXPECTATIONS_FILE} of its package"
    )
    group.addoption("--conformance-report", help="a file to which a line of JSON is written for each case")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "optional: a backend may lack this; where it has it, it must be right")
    family = config.getoption("--model-package")
    name = config.getoption("--backend") or (family and "numpy")
    if name is None:
        raise pytest.UsageError("Pass --backend NAME; `aethermind doctor` lists the devices of this machine.")
    try:
        conformance = _Conformance(config, name)
    except AetherMindError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(conformance, _PLUGIN)


class _Conformance:
    """One run on one backend."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        self.runtime = Runtime.boot()
        self.opened = self.runtime.open_device(name, fallback=Fallback.ALLOW)
        self.model: str = config.getoption("--conformance-model")
        family = config.getoption("--model-package")
        self._architectures = [] if family is None else _architectures(self.runtime, family)
        subject = self.runtime.architectures.get(self._architectures[0]) if family else self.opened.backend
        self._expectations = _expectations(config.getoption("--expectations"), subject)
        path = config.getoption("--conformance-report")
        self._report_path = None if path is None else Path(path)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "kernel_case" in metafunc.fixturenames:
            metafunc.parametrize("kernel_case", self._kernel_cases, ids=str)
        if "kernel_group" in metafunc.fixturenames:
            metafunc.parametrize("kernel_group", list(kernel_groups(self._kernel_cases)), ids=str)
        if "invariant_group" in metafunc.fixturenames:
            metafunc.parametrize("invariant_group", list(self._invariant_groups()), ids=str)
        if "unknown_kernel" in metafunc.fixturenames:
            metafunc.parametrize("unknown_kernel", list(self._unknown_kernels()), ids=lambda text: text.split()[1])
        if "operator_without_kernel" in metafunc.fixturenames:
            computed = {kernel.operator for kernel in self._kernels()}
            metafunc.parametrize(
                "operator_without_kernel",
                [operator.name for operator in self.runtime.operators if operator.name not in computed],
            )
        if "model_check" in metafunc.fixturenames:
            metafunc.parametrize(("model_check", "model_case"), list(self._model_checks()), ids=_check_name)
        if "general_architecture" in metafunc.fixturenames:
            metafunc.parametrize(("general_architecture", "model_case"), list(self._gguf_cases()), ids=str)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not item.name.endswith("[NOTSET]")]  # there are no parameters
        names = list(map(_case_name, items))
        for item, name in zip(items, names, strict=True):
            expected = self._expectations.find(name)
            if expected is not None and expected.kind == "unsupported":
                item.add_marker(pytest.mark.skip(reason=expected.reason))
            elif expected is not None:
                item.add_marker(pytest.mark.xfail(reason=expected.reason))
        for unused in self._expectations.unused(names):
            self._write("problem", f"The expectation for {unused.cases!r} matches no case. Remove or correct it.")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._write("running", _case_name(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or not report.passed:
            self._write("case", asdict(replace(_result(item, report), is_foreign=self._is_foreign(item))))
        return report

    def pytest_unconfigure(self) -> None:
        self.opened.backend.close()

    def _is_foreign(self, item: pytest.Item) -> bool:
        """Whether a case is about an operator of a package that is neither the core nor that of the device."""
        name = _operator_of(item)
        if name is None:
            return False
        providers = {"aethermind-core", *self.runtime.providers("devices", self.opened.backend.name)}
        return not providers & set(self.runtime.providers("operators", name))

    def _kernels(self) -> Sequence[Kernel]:
        return self.runtime.kernels.kernels(self.opened.backend.name)

    @cached_property
    def _kernel_cases(self) -> list[KernelCase]:
        return list(kernel_cases(self.runtime.operators, self._kernels(), self.runtime.weight_formats))

    def _invariant_groups(self) -> Iterator[KernelGroup]:
        """Yield kernels that claim to be batch invariant, of operators whose rows can be computed alone."""
        invariant_cases = [case for case in self._kernel_cases if case.kernel.is_batch_invariant]
        for group in kernel_groups(invariant_cases, of_every_format=True):
            if any(has_separable_rows(case, self.runtime.operators) for case in group.cases):
                yield group

    def _unknown_kernels(self) -> Iterator[str]:
        known = with_collectives(self.runtime.operators)
        for kernel, problem, _ in unusable_kernels(self._kernels(), known):
            if kernel.operator not in known:
                yield f"Kernel {kernel.operator}-{kernel.name} is never used: {problem}"

    def _model_checks(self) -> Iterator[tuple[Any, ModelCase]]:
        for architecture in self._architectures:
            for case in cases_of(self.runtime, architecture):
                for check in checks_of(case, self.runtime):
                    yield check, case

    def _gguf_cases(self) -> Iterator[tuple[str, ModelCase]]:
        for name in self.runtime.gguf_families.names():
            architecture = self.runtime.gguf_families.get(name).architecture
            if architecture in self._architectures:
                yield name, cases_of(self.runtime, architecture)[0]

    def _write(self, kind: str, value: Any) -> None:
        if self._report_path is not None:
            with self._report_path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({kind: value}) + "\n")


@pytest.fixture(scope="session")
def conformance(request: pytest.FixtureRequest) -> Any:
    """The conformance run."""
    return request.config.pluginmanager.get_plugin(_PLUGIN)


@pytest.fixture(scope="session")
def runtime(conformance: Any) -> Runtime:
    """The runtime with all installed packages."""
    found: Runtime = conformance.runtime
    return found


@pytest.fixture(scope="session")
def opened(conformance: Any) -> OpenDevice:
    """The device under test, open for the whole run."""
    found: OpenDevice = conformance.opened
    return found


@pytest.fixture(scope="session")
def backend(opened: OpenDevice) -> Backend:
    """The backend of the device under test."""
    return opened.backend


@pytest.fixture(scope="session")
def device(opened: OpenDevice) -> DeviceId:
    """The device under test."""
    return opened.device


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """The checkpoints of the families suite."""
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def model(conformance: Any) -> str:
    """The name of the model of the models suite."""
    return str(conformance.model)


def _architectures(runtime: Runtime, family: str) -> Sequence[str]:
    found = architectures_of(runtime, family)
    if not found:
        known = ", ".join(runtime.architectures.names()) or "none"
        raise InvalidArgumentError(f"No model package is called {family!r}. Installed architectures: {known}.")
    return found


def _check_name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def _expectations(given: str | None, subject: object) -> Expectations:
    if given is not None:
        return read_expectations(Path(given))
    beside = Path(inspect.getfile(type(subject))).with_name(EXPECTATIONS_FILE)
    return read_expectations(beside) if beside.is_file() else Expectations()


def _operator_of(item: pytest.Item) -> str | None:
    """Return the operator that a case is about, if any."""
    parameters = getattr(item, "callspec").params if hasattr(item, "callspec") else {}  # noqa: B009
    for value in parameters.values():
        if isinstance(value, KernelGroup):
            value = value.cases[0]
        if isinstance(value, KernelCase):
            return value.operator.name
    operator_without_kernel = parameters.get("operator_without_kernel")
    return None if operator_without_kernel is None else str(operator_without_kernel)


def _case_name(item: pytest.Item) -> str:
    """Return the name of a case, `suite.test[parameters]`: the suite is the first word of the file's name."""
    suite = item.path.stem.removeprefix("test_").partition("_")[0]
    return f"{suite}.{item.name.removeprefix('test_')}"


def _result(item: pytest.Item, report: pytest.TestReport) -> CaseResult:
    is_required = item.get_closest_marker("optional") is None
    is_expected_to_fail = item.get_closest_marker("xfail") is not None
    if report.skipped and is_expected_to_fail and hasattr(report, "wasxfail"):
        outcome, reason = Outcome.EXPECTED_FAILURE, report.wasxfail
    elif report.skipped:
        where = report.longrepr
        outcome, reason = Outcome.UNSUPPORTED, str(where[2] if isinstance(where, tuple) else where)
    elif report.passed and is_expected_to_fail:
        outcome, reason = Outcome.UNEXPECTED_PASS, "It passes now; remove it from the expectations."
    elif report.passed:
        outcome, reason = Outcome.PASSED, ""
    else:
        outcome, reason = Outcome.FAILED, _first_line(report)
    details = report.longreprtext if outcome is Outcome.FAILED else ""
    return CaseResult(
        _case_name(item), outcome, is_required, reason.removeprefix("Skipped: "), details, report.duration
    )


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else str(crash.message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "It failed without a message."
