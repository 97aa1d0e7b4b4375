"""The official TCK of A2A 1.0 on three bindings: an SDK agent directly, that agent behind a node, and the node's door.

The TCK is no package: its sources are taken from the folder that A2A_TCK names, or cloned once. If neither is
available, this part is skipped and says so. The node has the default settings of the door. A node with these settings
cannot be tried for the errors of what it offers; a second, strict node answers these tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from a2a_fabric.agent import Agent
from tests.conformance.commands import CommandFailed, run
from tests.conformance.npm import Npm
from tests.fixtures.agents.a2a_tck_agent import AGENT_ID, doors, tck_agent
from tests.fixtures.agents.a2a_tck_sdk import serving_tck
from tests.fixtures.node import Node, eventually, running

SOURCES = "A2A_TCK"  # the name of the variable
CLONED_FROM = ("--branch", "1.0-dev", "https://github.com/a2aproject/a2a-tck.git")
LEVELS = ("must", "should", "may")
# A failure of one of these is a mistake of the TCK; docs/a2a.md has the sentences of the specification.
MISTAKES = {
    "CORE-SEND-003": "the error that it demands is an error, and it counts every error as a failure",
    "TestAgentCardStructure.test_agent_card_validates_against_schema": "it refuses fields that it does not know",
    "TestRestFormat.test_response_content_type": "the media type of this binding is application/a2a+json",
    "TestGrpcStatusCodes.test_version_not_supported": "the status is FAILED_PRECONDITION since 1.0.1",
    "TestGrpcStatusCodes.test_push_not_supported": "the status is FAILED_PRECONDITION since 1.0.1",
}
_TESTS = "tests/compatibility"
_OF_STRICT = "not_supported or required_extension"
_CLONE_SECONDS, _INSTALL_SECONDS, _RUN_SECONDS = 60.0, 600.0, 900.0
_MAX_REASON = 300
_BINDINGS = {
    "jsonrpc": "JSON-RPC",
    "http_json": "HTTP+JSON",
    "httpjson": "HTTP+JSON",
    "rest": "HTTP+JSON",
    "grpc": "gRPC",
}
Verdict = Literal["passed", "failed", "skipped"]
_VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Outcome:
    """How one test went."""

    name: str
    level: str
    verdict: Verdict
    reason: str = ""

    @property
    def binding(self) -> str:
        """The test's parameter names it; else the test's name does, or its folder."""
        parameter = self.name.partition("[")[2]
        for text in (parameter, self.name.lower()):
            for word, binding in _BINDINGS.items():
                if any(f"{mark}{word}" in f".{text}" for mark in (".", "_", "-", "test")):
                    return binding
        return "any"

    @property
    def mistake(self) -> str | None:
        """Why the TCK is wrong if this test fails."""
        return next((reason for name, reason in MISTAKES.items() if name in self.name), None)

    @property
    def is_ours(self) -> bool:
        return self.verdict == "failed" and self.level != "may" and self.mistake is None


Outcomes = Mapping[str, Outcome]  # by the test's name


async def is_well(npm: Npm) -> bool:
    """Raises CommandFailed, also if A2A_TCK names a folder without the TCK."""
    print("\nA2A TCK")
    for name in ("a2a", "opentelemetry"):  # of the SDK's agent, which reports every error that it was asked to make
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    folder = os.environ.get(SOURCES)
    try:
        sources = Path(folder) if folder else await _clone(npm.folder / "a2a-tck")
    except CommandFailed as failed:
        print(f"  skipped, as its sources are not available: {' '.join(str(failed).split())[:_MAX_REASON]}")
        print(f"  (set {SOURCES} to the folder that holds them)")
        return True
    if not (sources / _TESTS).is_dir():
        raise CommandFailed(f"{sources} does not hold the TCK of A2A 1.0: there is no {_TESTS}")
    tck = Tck(await _install(sources, npm.folder / "a2a-tck-venv"), sources)
    subjects: dict[str, Outcomes] = {}
    async with serving_tck() as served:
        subjects["direct"] = await tck.try_all(served.url)
        behind = {"agent_id": AGENT_ID, "runtime": "a2a", "endpoint": {"uri": served.url}}
        async with _serve_node(manifests=[behind]) as url:
            subjects["behind"] = await tck.try_all(url)
    async with _serve_node(tck_agent()) as url:
        subjects["default"] = await tck.try_all(url)
    signing = {"key": _make_key(), "key_id": "tck"}
    strict_doors = doors("127.0.0.1:0", is_strict=True, signing=signing)
    async with _serve_node(tck_agent(is_strict=True), doors=strict_doors) as url:
        refusals = await tck.run(url, "must", "-k", _OF_STRICT)
    subjects["default"] = {**subjects["default"], **{each.name: each for each in refusals if each.verdict != "skipped"}}
    show(subjects)
    return not any(each.is_ours for name in ("behind", "default") for each in subjects[name].values())


@asynccontextmanager
async def _serve_node(
    *agents: Agent, manifests: Sequence[dict[str, Any]] = (), doors: Sequence[dict[str, Any]] | None = None
) -> AsyncIterator[str]:
    """The address of an agent that its node has alone: over gRPC the TCK names no tenant, so the node has to choose."""
    config = {
        "auth": {"anonymous": True},
        "jobs": {"webhook_allow": ["127.0.0.1"]},
        "doors": doors or [{"kind": "a2a", "grpc": "127.0.0.1:0"}],
    }
    async with running(*agents, manifests=manifests, psk=None, config=config) as node:
        await eventually(lambda: _has_skills(node))
        yield f"{node.url}/agents/{AGENT_ID}"


async def _has_skills(node: Node) -> bool:
    return bool(node.fabric.registry.get_agent(AGENT_ID).capabilities)


async def _clone(into: Path) -> Path:
    """Once. Raises CommandFailed."""
    if not await asyncio.to_thread(into.is_dir):
        command = ["git", "clone", "--quiet", "--depth", "1", *CLONED_FROM, str(into)]
        await run(command, seconds=_CLONE_SECONDS, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    return into


async def _install(sources: Path, home: Path) -> str:
    """An interpreter that has what the TCK needs. Raises CommandFailed."""
    project = tomllib.loads((sources / "pyproject.toml").read_text("utf-8"))
    needed = "\n".join(project["project"]["dependencies"])
    python, stamp = home / "bin" / "python", home / ".installed"
    if not stamp.exists() or stamp.read_text("utf-8") != needed:
        await run([sys.executable, "-m", "venv", "--clear", str(home)], seconds=_INSTALL_SECONDS)
        command = [str(python), "-m", "pip", "install", "--quiet", *needed.splitlines()]
        await run(command, seconds=_INSTALL_SECONDS)
        stamp.write_text(needed, "utf-8")
    return str(python)


def _make_key() -> str:
    """The cards of the strict node are signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class Tck:
    def __init__(self, python: str, sources: Path) -> None:
        self._python = python
        self._sources = sources

    async def try_all(self, url: str) -> Outcomes:
        """Raises CommandFailed."""
        return {each.name: each for level in LEVELS for each in await self.run(url, level)}

    async def run(self, url: str, level: str, *options: str) -> list[Outcome]:
        """Raises CommandFailed."""
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            common = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-m", level]
            subject = [f"--sut-host={url}", "--webhook-host=127.0.0.1"]
            command = [self._python, "-m", "pytest", _TESTS, *common, *options, *subject]
            done = await run(command, seconds=_RUN_SECONDS, cwd=self._sources, env=env, may_fail=True)
            if not report.exists():
                raise CommandFailed(f"The TCK wrote no report:\n{done.last_words}")
            return list(_read_report(report.read_text("utf-8"), level))


def _read_report(report: str, level: str) -> Iterator[Outcome]:
    """The TCK calls it an expected failure if a SHOULD does not hold."""
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314  # pytest wrote it
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix("tests.compatibility.")
        verdict: Verdict = "passed"
        reason = ""
        for element in case:
            if element.tag in ("failure", "error") or element.get("type") == "pytest.xfail":
                verdict, reason = "failed", element.get("message", "")
            elif element.tag == "skipped":
                verdict, reason = "skipped", element.get("message", "")
        yield Outcome(name, level, verdict, " ".join(reason.split())[:_MAX_REASON])


def show(subjects: Mapping[str, Outcomes]) -> None:
    """How many tests passed, failed and were skipped, for each subject; then all that did not pass everywhere."""
    counts = {name: _count(outcomes.values()) for name, outcomes in subjects.items()}
    rows = sorted({key for each in counts.values() for key in each}, key=lambda key: (LEVELS.index(key[0]), key[1]))
    print(f"  {'passed/failed/skipped':24}{''.join(f'{name:>14}' for name in subjects)}")
    for row in rows:
        cells = ("/".join(str(counts[name][row][verdict]) for verdict in _VERDICTS) for name in subjects)
        print(f"  {row[0].upper():10}{row[1]:14}{''.join(f'{cell:>14}' for cell in cells)}")
    names = dict.fromkeys(name for outcomes in subjects.values() for name in outcomes)
    for name in names:
        found = {subject: outcomes[name] for subject, outcomes in subjects.items() if name in outcomes}
        if any(each.verdict == "failed" for each in found.values()):
            _show_failure(name, found)
    for name in names:
        skipped = {subject: outcomes[name] for subject, outcomes in subjects.items() if name in outcomes}
        reasons = {each.reason for each in skipped.values() if each.verdict == "skipped"}
        if reasons and not any(each.verdict == "failed" for each in skipped.values()):
            where = ", ".join(subject for subject, each in skipped.items() if each.verdict == "skipped")
            print(f"  skipped {name} ({where}): {'; '.join(sorted(reasons))}")


def _count(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], Counter[str]]:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for each in outcomes:
        counts.setdefault((each.level, each.binding), Counter())[each.verdict] += 1
    return counts


def _show_failure(name: str, found: Mapping[str, Outcome]) -> None:
    verdicts = ", ".join(f"{subject} {each.verdict}" for subject, each in found.items())
    one = next(each for each in reversed(list(found.values())) if each.verdict == "failed")
    print(f"  {one.level.upper()} {name}: {verdicts}")
    print(f"      {'mistake of the TCK: ' + one.mistake if one.mistake else one.reason}")
