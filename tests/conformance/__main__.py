"""Runs the suite in both eras against the fixture (a) and against the fixture through a node (b); then real clients.

Exit 1 if a scored scenario fails, or goes in any way otherwise through the node
than without it, or if a client that could be installed does not get on with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance import real_clients
from tests.conformance.commands import CommandFailed
from tests.conformance.npm import Npm
from tests.conformance.suite import Report, Scenario, Suite
from tests.fixtures.conformance_server import serving
from tests.fixtures.node import running

CACHE = Path(__file__).parents[2] / ".conformance"
REQUIREMENTS = ("2025-11-25", "2026-07-28")
PARTS = ("suite", "clients")
AGENT = "fixture"
_NONE = Scenario("", ())


def told(scenario: Scenario) -> str:
    if not scenario.checks:
        return "did not run"
    word = "pass" if scenario.is_passed else "FAIL"
    warned = scenario.count("WARNING")
    return f"{word} {scenario.count('SUCCESS')}/{len(scenario.checks)}" + (f" ({warned} warned)" if warned else "")


def differences(direct: Report, through: Report) -> Iterator[str]:
    """Check by check, and so also where both pass with another number of checks."""
    for name in sorted({*direct.scenarios, *through.scenarios}):
        a, b = direct.scenarios.get(name, _NONE), through.scenarios.get(name, _NONE)
        if a.checks != b.checks:
            only = [" ".join(check) for check in sorted({*a.checks} ^ {*b.checks})]
            yield f"{name}: {', '.join(only) or 'the number of checks'}"
            yield from (f"    through the node: {words}" for words in b.complaints if words not in a.complaints)


def show(requirements: str, direct: Report, through: Report) -> bool:
    """Prints one era; whether all is well."""
    print(f"\n{requirements:50}{'(a) fixture':18}(b) through /agents/{AGENT}/mcp")
    failed = []
    for name, scenario in direct.scenarios.items():
        other = through.scenarios.get(name, _NONE)
        is_scored = name not in direct.unscored
        print(f"  {name:48}{told(scenario):18}{told(other):18}{'' if is_scored else 'not scored'}")
        if is_scored and not (scenario.is_passed and other.is_passed):
            failed.append(name)
            print(*(f"      {words}" for words in (*scenario.complaints, *other.complaints)), sep="\n")
    different = list(differences(direct, through))
    scored = len(direct.scenarios) - len(direct.unscored)
    print(f"  scored scenarios: {scored}, failed in (a) or (b): {len(failed)}; unscored: {len(direct.unscored)}")
    print(f"  difference between (a) and (b): {'none' if not different else ''}")
    print(*(f"    {line}" for line in different), sep="\n", end="\n" if different else "")
    return not failed and not different


async def suite_is_well(npm: Npm) -> bool:
    suite = Suite(npm)
    await suite.install()
    is_well = True
    async with serving() as url:
        manifest = {"agent_id": AGENT, "runtime": "mcp", "endpoint": {"uri": url}}
        # The suite has no credentials, so it comes as what is let in without: a program of this machine.
        async with running(manifests=[manifest], psk=None, config={"auth": {"anonymous": True}}) as node:
            for requirements in REQUIREMENTS:
                direct = await suite.run(url, requirements)
                through = await suite.run(f"{node.url}/agents/{AGENT}/mcp", requirements)
                is_well = show(requirements, direct, through) and is_well
    return is_well


async def main(parts: Sequence[str]) -> int:
    npm = Npm(CACHE)
    is_well = True
    if "suite" in parts:
        try:
            is_well = await suite_is_well(npm)
        except CommandFailed as failed:
            print(failed, file=sys.stderr)
            is_well = False
    if "clients" in parts:
        is_well = await real_clients.are_well(npm) and is_well
    return 0 if is_well else 1


if __name__ == "__main__":
    wanted = sys.argv[1:] or PARTS
    if not {*wanted} <= {*PARTS}:
        sys.exit(f"Name parts to run of: {', '.join(PARTS)}")
    sys.exit(asyncio.run(main(wanted)))
