"""The official TCK of A2A 1.0 against a node with our test agent behind it, on all three bindings.

It is no package: its sources are taken from the folder that A2A_TCK names, or cloned once. Where
neither is to be had, this part is skipped and says so. What the node offers cannot be tried as
something that it refuses; for these tests there is a second, strict node.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.conformance.commands import CommandFailed, run
from tests.conformance.npm import Npm
from tests.fixtures.agents.a2a_tck_agent import AGENT_ID, doors, tck_agent
from tests.fixtures.node import running

SOURCES = "A2A_TCK"  # the name of the variable
CLONED_FROM = "https://github.com/a2aproject/a2a-tck.git"
LEVELS = ("must", "should", "may")
_TESTS = "tests/compatibility"
_OF_STRICT = "not_supported or required_extension"
_CLONE_SECONDS, _INSTALL_SECONDS, _RUN_SECONDS = 60.0, 600.0, 600.0
_LONGEST = 300
_BINDINGS = {
    "jsonrpc": "JSON-RPC",
    "http_json": "HTTP+JSON",
    "httpjson": "HTTP+JSON",
    "rest": "HTTP+JSON",
    "grpc": "gRPC",
}


@dataclass(frozen=True)
class Outcome:
    """How one test went: passed, failed or skipped."""

    name: str
    level: str
    word: str
    why: str = ""

    @property
    def binding(self) -> str:
        """In brackets stands what it was tried with; else the test's name tells, or where it stands."""
        tried = self.name.partition("[")[2]
        for told in (tried, self.name.lower()):
            for word, binding in _BINDINGS.items():
                if any(f"{mark}{word}" in f".{told}" for mark in (".", "_", "-", "test")):
                    return binding
        return "any"


async def is_well(npm: Npm) -> bool:
    """Raises CommandFailed, also if A2A_TCK names what is no TCK."""
    print("\nA2A TCK")
    told = os.environ.get(SOURCES)
    try:
        sources = Path(told) if told else await _cloned(npm.folder / "a2a-tck")
    except CommandFailed as failed:
        print(f"  skipped, as its sources are not to be had: {' '.join(str(failed).split())[:_LONGEST]}")
        print(f"  (set {SOURCES} to the folder that holds them)")
        return True
    if not (sources / _TESTS).is_dir():
        raise CommandFailed(f"{sources} does not hold the TCK of A2A 1.0: there is no {_TESTS}")
    python = await _python(sources, npm.folder / "a2a-tck-venv")
    outcomes = await _outcomes(python, sources)
    show(outcomes)
    return not any(each.word == "failed" and each.level != "may" for each in outcomes)


async def _cloned(into: Path) -> Path:
    """Once. Raises CommandFailed."""
    if not await asyncio.to_thread(into.is_dir):
        words = ["git", "clone", "--quiet", "--depth", "1", CLONED_FROM, str(into)]
        await run(words, seconds=_CLONE_SECONDS, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    return into


async def _python(sources: Path, home: Path) -> str:
    """An interpreter that has what the TCK needs. Raises CommandFailed."""
    about = tomllib.loads((sources / "pyproject.toml").read_text("utf-8"))
    needed = "\n".join(about["project"]["dependencies"])
    python, stamp = home / "bin" / "python", home / ".installed"
    if not stamp.exists() or stamp.read_text("utf-8") != needed:
        await run([sys.executable, "-m", "venv", "--clear", str(home)], seconds=_INSTALL_SECONDS)
        words = [str(python), "-m", "pip", "install", "--quiet", *needed.splitlines()]
        await run(words, seconds=_INSTALL_SECONDS)
        stamp.write_text(needed, "utf-8")
    return str(python)


async def _outcomes(python: str, sources: Path) -> list[Outcome]:
    """Raises CommandFailed."""
    found: dict[str, Outcome] = {}
    signing = {"key": _key(), "key_id": "tck"}
    async with AsyncExitStack() as nodes:
        for is_strict in (False, True):
            config = {
                "auth": {"anonymous": True},
                "jobs": {"webhook_allow": ["127.0.0.1"]},
                "doors": doors("127.0.0.1:0", is_strict=is_strict, signing=signing),
            }
            node = await nodes.enter_async_context(running(tck_agent(is_strict=is_strict), psk=None, config=config))
            only = ("-k", _OF_STRICT) if is_strict else ()
            for level in ("must",) if is_strict else LEVELS:
                words = ["-m", level, *only, f"--sut-host={node.url}/agents/{AGENT_ID}", "--webhook-host=127.0.0.1"]
                for each in await _run(python, sources, words, level):
                    if each.name not in found or found[each.name].word == "skipped":
                        found[each.name] = each
    return list(found.values())


def _key() -> str:
    """Cards are signed, so that their signatures are looked at too."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


async def _run(python: str, sources: Path, words: Sequence[str], level: str) -> list[Outcome]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as kept:
        report = Path(kept) / "report.xml"
        common = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command = [python, "-m", "pytest", _TESTS, *common, *words]
        said = await run(command, seconds=_RUN_SECONDS, cwd=sources, env=env, may_fail=True)
        if not report.exists():
            raise CommandFailed(f"The TCK said nothing that can be read:\n{said.last_words}")
        return list(_read(report.read_text("utf-8"), level))


def _read(report: str, level: str) -> Iterator[Outcome]:
    """Expected failures are what falls short of a SHOULD: the TCK calls them so."""
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314  # pytest wrote it
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix("tests.compatibility.")
        word, why = "passed", ""
        for told in case:
            if told.tag in ("failure", "error") or told.get("type") == "pytest.xfail":
                word, why = "failed", told.get("message", "")
            elif told.tag == "skipped":
                word, why = "skipped", told.get("message", "")
        yield Outcome(name, level, word, " ".join(why.split())[:_LONGEST])


def show(outcomes: Iterable[Outcome]) -> None:
    counted = Counter((each.level, each.binding, each.word) for each in outcomes)
    print(f"  {'':10}{'':12}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for level, binding in sorted({key[:2] for key in counted}, key=lambda key: (LEVELS.index(key[0]), key[1])):
        numbers = "".join(f"{counted[level, binding, word]:8}" for word in ("passed", "failed", "skipped"))
        print(f"  {level.upper():10}{binding:12}{numbers}")
    for each in outcomes:
        if each.word != "passed":
            print(f"  {each.word} {each.level.upper()} {each.name}: {each.why}")
