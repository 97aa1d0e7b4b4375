"""What an operator asks for when agents are added or tools switched, and what the reply says.

The console and the command line send these to a running node (`admin.operations`); `admin.agent_files` carries them
out, in the node or, without one, in the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import AgentNotFound, BadInput
from a2a_fabric.importing.secrets import Variable
from a2a_fabric.operations.operation import TracedArguments

AGENT_PREFIX = "agent."  # of an agent's tool in lists for programs

FilePath = Annotated[
    Annotated[str, Meta(max_length=4096)] | None,
    Meta(description="Which file of agents of the node; unset: the first one."),
]
Variables = Annotated[dict[str, str], Meta(max_length=200)]


class PlanArguments(TracedArguments, frozen=True, kw_only=True):
    source: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_048_576)] | None,
        Meta(description="An address, a command line, or an mcp.json."),
    ] = None
    entries: Annotated[
        tuple[dict[str, Any], ...], Meta(max_length=200, description="Agents as in agents.yaml, instead of a source.")
    ] = ()
    agent_id: Annotated[Annotated[str, Meta(max_length=128)] | None, Meta(description="Its id; unset: its name.")] = (
        None
    )
    headers: Annotated[Variables, Meta(description="Headers for an address; a value may be `env:NAME`.")] = (
        msgspec.field(default_factory=dict)
    )
    env: Annotated[Variables, Meta(description="Variables for a command; a value may be `env:NAME`.")] = msgspec.field(
        default_factory=dict
    )
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=60)] | None, Meta(description="For each attempt to find out the protocol.")
    ] = None
    path: FilePath = None


class AddArguments(TracedArguments, frozen=True, kw_only=True):
    entries: Annotated[
        tuple[dict[str, Any], ...], Meta(min_length=1, max_length=200, description="`entries` of `agent.plan`.")
    ]
    path: FilePath = None


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that would be added, the change of the file, and what the operator has to know.

    `found` is the entry that a probe made, also if it is present already.
    """

    entries: tuple[dict[str, Any], ...] = ()
    found: dict[str, Any] | None = None
    path: str = ""
    diff: str = ""
    remarks: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    target: str = ""
    attempts: tuple[dict[str, Any], ...] = ()
    capabilities: tuple[Capability, ...] = ()
    trouble: str | None = None  # why the agent did not list its capabilities


class ToolSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """What switching tools did. `matched` are those that are known; None if it is not known which tools there are."""

    path: str
    is_changed: bool
    matched: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()


def split_tool_name(name: str, agent_ids: Sequence[str]) -> tuple[str, str]:
    """The agent and the pattern of AGENT.TOOL; the longest id wins. Raises AgentNotFound, BadInput."""
    found = [each for each in agent_ids if name.startswith(f"{each}.")]
    if not found and name.startswith(AGENT_PREFIX):
        return split_tool_name(name.removeprefix(AGENT_PREFIX), agent_ids)
    if not found:
        if "." not in name:
            raise BadInput(f"'{name}' is not AGENT.TOOL, for example github.delete_repo")
        raise AgentNotFound(name.partition(".")[0], agent_ids)
    agent_id = max(found, key=len)
    pattern = name[len(agent_id) + 1 :]
    if not pattern:
        raise BadInput(f"'{name}' names no tool; all of them are {agent_id}.*")
    return agent_id, pattern
