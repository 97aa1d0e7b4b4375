"""What all tests share: the requirement mark, the count of proven requirements at the end of a run, some fixtures."""

from __future__ import annotations

import signal
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from a2a_fabric.jobs import reader
from tests.limit import Limit
from tests.matrix.report import MatrixReport
from tests.profiles import load_profile

REQUIREMENTS: dict[str, str] = tomllib.loads((Path(__file__).parent / "requirements.toml").read_text("utf-8"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has started us in the background. What we start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SIGNAL_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

load_profile()

CLAIM = "requirement"
# Properties that tests record and the summary prints.
FIGURES = {"routing_accuracy": "routing by words", "semantic_accuracy": "by meaning after the words"}


class Proofs:
    """Which tests claim to prove a requirement, and how they went."""

    def __init__(self) -> None:
        self.claims: dict[str, set[str]] = defaultdict(set)  # id -> tests marked with it
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.ran: set[str] = set()

    def claim(self, test: str, ids: tuple[str, ...]) -> None:
        for each in ids:
            self.claims[each].add(test)

    def note(self, test: str, when: str, outcome: str) -> None:
        self.ran.add(test)
        if outcome != "passed":
            self.failed.add(test)
        elif when == "call":
            self.passed.add(test)

    @property
    def proven(self) -> list[str]:
        """Those all of whose tests passed; one that failed, was skipped or did not run is enough to say no."""
        good = self.passed - self.failed
        return sorted(each for each, tests in self.claims.items() if tests <= good)

    @property
    def unproven(self) -> list[str]:
        """Those marked, with a test that ran and did not pass."""
        return sorted(each for each, tests in self.claims.items() if tests & self.failed)


class Bookkeeper:
    def __init__(self) -> None:
        self._proofs = Proofs()
        self._figures: dict[str, str] = {}  # measured by tests, by name

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("requirement"):
                unknown = [each for each in mark.args if each not in REQUIREMENTS]
                if unknown or not mark.args:
                    raise pytest.UsageError(f"{item.nodeid}: no requirement is called {unknown}; see requirements.toml")
                self._proofs.claim(item.nodeid, mark.args)
                item.user_properties.append((CLAIM, mark.args))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, ids in report.user_properties:  # the process that counts is not always the one that collects
            if name == CLAIM and isinstance(ids, list | tuple):
                self._proofs.claim(report.nodeid, tuple(map(str, ids)))
            elif name in FIGURES:
                self._figures[name] = str(ids)
        self._proofs.note(report.nodeid, report.when or "", report.outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        proofs = self._proofs
        for name, figure in self._figures.items():
            terminalreporter.write_line(f"{FIGURES[name]}: {figure}")
        if not proofs.ran or not proofs.claims:
            return
        terminalreporter.write_line(f"requirements proven: {len(proofs.proven)} of {len(REQUIREMENTS)}")
        if proofs.unproven:
            terminalreporter.write_line(f"marked, but not proven in this run: {', '.join(proofs.unproven)}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-matrix", action="store_true", help="every cell of tests/matrix, not a seventh of them")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Bookkeeper(), "fabric-requirements")
    config.pluginmanager.register(Limit(), "fabric-limit")
    if not hasattr(config, "workerinput"):  # the process that hears of all results
        config.pluginmanager.register(MatrixReport(), "fabric-matrix")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Of two uvicorn servers that overlap, the last to end may put back the signal handlers of the one that ended.

    sse_starlette, which the MCP SDK uses, takes that one for the server of the process, and ends all streams.
    """
    for number, handler in SIGNAL_HANDLERS.items():
        server = getattr(signal.getsignal(number), "__self__", None)
        if getattr(server, "should_exit", False):
            signal.signal(number, handler)


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that wait for a job are woken by a notice, or not at all: none of them polls."""
    monkeypatch.setattr(reader, "_POLL_INTERVAL", 600.0)
