"""`a2a-fabric probe`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from a2a_fabric.cli import agents_file
from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_json, print_line, remark, reported
from a2a_fabric.cli.probed import Outcome, Target, pairs_in, probed
from a2a_fabric.cli.setup import AGENTS_FILE
from a2a_fabric.config import environment
from a2a_fabric.importing.agents_text import extended
from a2a_fabric.registry.files import read_manifests

_SHOWN = 20


def run(
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND...", help="An address, or a program: after -- if it has options."),
    ],
    add: Annotated[bool, typer.Option("--add", help="Add what was found to the agents.")] = False,
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="Where it is added.")] = Path(AGENTS_FILE),
    agent_id: Annotated[str | None, typer.Option("--id", metavar="NAME", help="What to call it.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Sent to an address. VALUE may be env:NAME. Repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For a program. VALUE may be env:NAME. Repeatable.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="For each try; default 5, for a program 15.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Add without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Find out what speaks at an address or in a program, and add it.

    Prints the entry for agents.yaml. A program is started as a node would start it, and always ended.

    Example: a2a-fabric probe http://127.0.0.1:8001
    """
    with reported(as_json=as_json):
        before = agents_file.read(agents)
        present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
        wanted = Target(words=_words(target), headers=pairs_in(header or []), env=pairs_in(env or []), timeout=timeout)
        outcome = asyncio.run(probed(wanted, agent_id, present, environment()))
        entries = [outcome.entry] if add and outcome.entry is not None and not outcome.is_known else []
        after = extended(before, entries, str(agents))
        if as_json:
            _report(outcome, agents, is_added=yes and after != before)
        else:
            _show(outcome)
        if outcome.entry is None:
            raise typer.Exit(1)
        if after != before and (yes or (not as_json and typer.confirm(f"Add it to {agents}?", default=True, err=True))):
            agents_file.write(agents, after)
            if not as_json:
                remark(f"Added to {agents}. Check it with: a2a-fabric check")
        elif add and outcome.is_known and not as_json:
            remark(f"It is in {agents} already.")


def _words(target: list[str]) -> tuple[str, ...]:
    """One word alone may be a whole command line."""
    try:
        words = shlex.split(target[0]) if len(target) == 1 else target
    except ValueError as exc:
        raise typer.BadParameter(f"{exc}") from exc
    if not words or not words[0]:
        raise typer.BadParameter("name an address or a program")
    return tuple(words)


def _show(outcome: Outcome) -> None:
    """The entry on stdout, so that it can be put into a file; everything else is for the person."""
    looks = outcome.report.looks
    remark(f"Tried {outcome.report.target}")
    width = max((len(look.protocol) for look in looks), default=0)
    for look in looks:
        remark(f"  {'✓' if look.found else '·'} {look.protocol.ljust(width)}  {look.outcome} ({look.seconds:.2f} s)")
    if outcome.entry is None:
        remark("Nothing was recognised. How to describe other APIs and programs: docs/runtimes.md")
        return
    _show_offer(outcome)
    print_line(yaml.safe_dump([outcome.entry], **_STYLE).rstrip("\n"))
    for variable in outcome.variables:
        remark(f"Set {variable.name} where the node runs ({variable.purpose}).")


_STYLE: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}


def _show_offer(outcome: Outcome) -> None:
    if outcome.trouble is not None:
        remark(f"What it offers could not be asked: {outcome.trouble}")
    for capability in outcome.capabilities[:_SHOWN]:
        about = " ".join(capability.description.split())[:100]
        remark(f"  offers {capability.name}{': ' if about else ''}{about}")
    if len(outcome.capabilities) > _SHOWN:
        remark(f"  and {len(outcome.capabilities) - _SHOWN} more")
    remark("")


def _report(outcome: Outcome, agents: Path, *, is_added: bool) -> None:
    tried = [
        {
            "protocol": look.protocol,
            "outcome": look.outcome,
            "seconds": round(look.seconds, 3),
            "found": bool(look.found),
        }
        for look in outcome.report.looks
    ]
    print_json(
        {
            "ok": outcome.entry is not None,
            "target": outcome.report.target,
            "tried": tried,
            "manifest": outcome.entry,
            "capabilities": outcome.capabilities,
            "trouble": outcome.trouble,
            "variables": outcome.variables,
            "path": str(agents),
            "added": is_added,
        }
    )
