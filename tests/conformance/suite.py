"""The official suite, and what its files say."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.commands import CommandFailed, run
from tests.conformance.npm import Npm

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
RUN_SECONDS = 300.0
_LONGEST = 400


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
    """Every run is a process of its own."""

    def __init__(self, npm: Npm) -> None:
        self._npm = npm
        self._entry = Path()

    async def install(self) -> None:
        """Only what is missing. Raises CommandFailed."""
        await self._npm.install_node()
        self._entry = await self._npm.install(SUITE, "dist/index.js", self._npm.folder)

    async def run(self, url: str, requirements: str) -> Report:
        """All that a revision asks of a server."""
        return await self._run(url, "--requirements", requirements)

    async def run_one(self, url: str, requirements: str, name: str) -> Scenario:
        """Also of an extension, which belongs to no revision."""
        report = await self._run(url, "--spec-version", requirements, "--scenario", name, "--force")
        return report.scenarios[name]

    def names(self, requirements: str, prefix: str) -> list[str]:
        """The scenarios that the suite runs at this revision, scored or not, whose names begin so."""
        listed = (self._entry.parents[1] / "requirements" / f"{requirements}.yaml").read_text("utf-8")
        words = (line.split() for line in listed.splitlines())
        found = [word[-1] for word in words if word[:2] == ["-", "scenario:"] and word[-1].startswith(prefix)]
        return list(dict.fromkeys(found))

    async def _run(self, url: str, *wanted: str) -> Report:
        with tempfile.TemporaryDirectory() as kept:
            words = ["server", "--url", url, *wanted, "-o", kept]
            said = await run([self._npm.node, str(self._entry), *words], seconds=RUN_SECONDS, may_fail=True)
            scenarios = dict(_scenarios(Path(kept)))
        if not scenarios:
            raise CommandFailed(f"The suite said nothing that can be read:\n{said.last_words}")
        return Report(scenarios, frozenset(_unscored(said.stdout + said.stderr)))


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
