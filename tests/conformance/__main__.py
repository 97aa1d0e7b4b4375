"""Runs the suite in both eras against the fixture and through a node, over HTTP and on stdio; then the TCK of A2A and
real programs.

The scenarios of the tasks extension run against an agent of the node's own: jobs are the node's, not the fixture's.

Exit 1 if a scored scenario fails, or goes in any way otherwise through the node
than without it, if a MUST or SHOULD of the TCK does not hold, or if a client or an agent that
could be installed does not get on with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.conformance import public_servers, real_agents, real_clients, tck
from tests.conformance.commands import CommandFailed
from tests.conformance.mesh import serving_mesh
from tests.conformance.npm import Npm
from tests.conformance.suite import Report, Scenario, Suite
from tests.fixtures.agents.tasks import AGENT_ID as TASKS_AGENT
from tests.fixtures.agents.tasks import tasks_agent
from tests.fixtures.conformance_server import serving
from tests.fixtures.node import running

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".conformance"
ON_STDIO = [sys.executable, "-m", "tests.fixtures.conformance_server", "stdio"]
REQUIREMENTS = ("2025-11-25", "2026-07-28")
TASKS_ERA = "2026-07-28"
PARTS = ("suite", "mesh", "tasks", "tck", "clients", "servers", "agents")
WRITE = "--write"  # the table of clients in docs/mcp.md, from what `servers` saw
_NONE = Scenario("", ())
# Not scored by the suite, but the node has to pass them.
_HEADER_CHECKS = frozenset({"http-header-validation", "http-custom-header-server-validation"})
# The SDK's server compares a header with the body before it removes the spaces around the header's value. The node
# removes them, and so passes the check that the fixture fails.
_WHITESPACE = "sep-2243-server-accepts-whitespace-header-value"
_MISTAKES_OF_THE_SDK = frozenset({(_WHITESPACE, "FAILURE"), (_WHITESPACE, "SUCCESS")})
# A server on pipes cannot close the stream of a reply to have its client come back for the rest. Not scored.
_NOT_ON_PIPES = {"on-stdio": frozenset({"server-sse-polling"})}


def told(scenario: Scenario) -> str:
    if not scenario.checks:
        return "did not run"
    if scenario.count("SKIPPED") == len(scenario.checks):
        return "skipped by the suite"
    word = "pass" if scenario.is_passed else "FAIL"
    warned = scenario.count("WARNING")
    return f"{word} {scenario.count('SUCCESS')}/{len(scenario.checks)}" + (f" ({warned} warned)" if warned else "")


def differences(direct: Report, through: Report, but: frozenset[str]) -> Iterator[str]:
    """Check by check, and so also where both pass with another number of checks."""
    for name in sorted({*direct.scenarios, *through.scenarios} - but):
        a, b = direct.scenarios.get(name, _NONE), through.scenarios.get(name, _NONE)
        a_checks, b_checks = ([each for each in side.checks if each not in _MISTAKES_OF_THE_SDK] for side in (a, b))
        if a_checks != b_checks:
            only = [" ".join(check) for check in sorted({*a_checks} ^ {*b_checks})]
            yield f"{name}: {', '.join(only) or 'the number of checks'}"
            yield from (f"    through the node: {words}" for words in b.complaints if words not in a.complaints)


def show(requirements: str, direct: Report, through: Mapping[str, Report]) -> bool:
    """Prints one era; whether all is well."""
    print(f"\n{requirements:50}{'fixture':18}{''.join(f'{name:18}' for name in through)}")
    failed = set()
    for name, scenario in direct.scenarios.items():
        all_ = [scenario, *(report.scenarios.get(name, _NONE) for report in through.values())]
        is_scored = name not in direct.unscored
        print(f"  {name:48}{''.join(f'{told(each):18}' for each in all_)}{'' if is_scored else 'not scored'}")
        due = all_ if is_scored else all_[1:] if name in _HEADER_CHECKS else []
        if not all(each.is_passed for each in due):
            failed.add(name)
            print(*(f"      {words}" for each in all_ for words in each.complaints), sep="\n")
    scored = len(direct.scenarios) - len(direct.unscored)
    print(f"  scored scenarios: {scored}, failed anywhere: {len(failed)}; unscored: {len(direct.unscored)}")
    is_same = [show_differences(name, direct, report) for name, report in through.items()]
    return not failed and all(is_same)


def show_differences(name: str, direct: Report, through: Report) -> bool:
    """Whether there is none."""
    but = _NOT_ON_PIPES.get(name, frozenset())
    different = list(differences(direct, through, but))
    left_out = f" (but for {', '.join(sorted(but))})" if but else ""
    print(f"  difference between the fixture and {name}{left_out}: {'none' if not different else ''}")
    print(*(f"    {line}" for line in different), sep="\n", end="\n" if different else "")
    return not different


async def suite_is_well(npm: Npm) -> bool:
    suite = Suite(npm)
    await suite.install()
    is_well = True
    async with serving() as url:
        manifests = [
            {"agent_id": "over-http", "runtime": "mcp", "endpoint": {"uri": url}},
            {"agent_id": "on-stdio", "runtime": "mcp", "endpoint": {"command": ON_STDIO, "cwd": str(ROOT)}},
        ]
        # The suite has no credentials, so it comes as what is let in without: a program of this machine.
        async with running(manifests=manifests, psk=None, config={"auth": {"anonymous": True}}) as node:
            for requirements in REQUIREMENTS:
                direct = await suite.run(url, requirements)
                through = {
                    agent_id: await suite.run(f"{node.url}/agents/{agent_id}/mcp", requirements)
                    for agent_id in ("over-http", "on-stdio")
                }
                is_well = show(requirements, direct, through) and is_well
    return is_well


async def mesh_is_well(npm: Npm) -> bool:
    suite = Suite(npm)
    await suite.install()
    is_well = True
    async with serving() as url, serving_mesh(url, ON_STDIO) as proxy:
        for requirements in REQUIREMENTS:
            direct = await suite.run(url, requirements)
            through = {
                agent_id: await suite.run(f"{proxy}/agents/{agent_id}/mcp", requirements)
                for agent_id in ("over-http", "on-stdio")
            }
            is_well = show(f"{requirements}, three nodes in turn", direct, through) and is_well
    return is_well


async def tasks_are_well(npm: Npm) -> bool:
    suite = Suite(npm)
    await suite.install()
    async with running(tasks_agent(), psk=None, config={"auth": {"anonymous": True}}) as node:
        url = f"{node.url}/agents/{TASKS_AGENT}/mcp"
        tried = [await suite.run_one(url, TASKS_ERA, name) for name in suite.names(TASKS_ERA, "tasks-")]
    print(f"\n{'tasks extension':50}an agent of the node")
    for scenario in tried:
        print(f"  {scenario.name:48}{told(scenario)}", *scenario.complaints, sep="\n      ")
    failed = [scenario.name for scenario in tried if not scenario.is_passed]
    print(f"  scenarios: {len(tried)}, failed: {len(failed)}")
    return bool(tried) and not failed


async def main(parts: Sequence[str], writes_table: bool) -> int:
    npm = Npm(CACHE)
    is_well = True
    for part, is_so in (
        ("suite", suite_is_well),
        ("mesh", mesh_is_well),
        ("tasks", tasks_are_well),
        ("tck", tck.is_well),
    ):
        if part in parts:
            try:
                is_well = await is_so(npm) and is_well
            except CommandFailed as failed:
                print(failed, file=sys.stderr)
                is_well = False
    if "clients" in parts:
        is_well = await real_clients.are_well(npm) and is_well
    if "servers" in parts:
        is_well = await public_servers.are_seen(npm, writes_table=writes_table) and is_well
    if "agents" in parts:
        is_well = await real_agents.are_well(npm) and is_well
    return 0 if is_well else 1


if __name__ == "__main__":
    wanted = [word for word in sys.argv[1:] if word != WRITE] or PARTS
    if not {*wanted} <= {*PARTS}:
        sys.exit(f"Name parts to run of: {', '.join(PARTS)}")
    sys.exit(asyncio.run(main(wanted, WRITE in sys.argv)))
