"""Changes of agents that commands make: through the node that follows the file, or in the file itself if none runs.

The node writes the file, follows it at once, and answers when the change counts. Without a node the command does the
same work on the file (`admin.agent_files`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.admin.agent_changes import AgentPlan, PlanArguments, ToolSwitch, split_tool_name
from a2a_fabric.cli.connection import administer
from a2a_fabric.cli.node_setup import AGENTS_FILE, plan_setup
from a2a_fabric.cli.output import remark
from a2a_fabric.client.local_node import RunningNode, StateFolder
from a2a_fabric.config import read_environment
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.core.ports import load_module

if TYPE_CHECKING:
    from a2a_fabric.admin.agent_files import AgentFiles

_PLAN_TIMEOUT = 180.0  # seconds: a program may have to be downloaded, and each protocol is tried


class AgentEditing:
    """`node_url` is the node that makes the change; None if the command does."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        agents_files: Sequence[str | Path] = (),
        config_file: Path | None = None,
    ) -> None:
        """`agents_files` and `config_file` are what the user named. Raises BadInput, ConfigError."""
        environ = read_environment()
        is_named = bool(agents_files or config_file)
        if url and is_named:
            raise BadInput("--url names a node, which has files of its own. Leave out --url, or --agents and --config")
        self._token = token
        self._environ = environ
        self._paths: tuple[Path, ...] = ()
        self._refusal: str | None = None
        self.node_url = url or (None if is_named else environ.get("FABRIC_URL") or None)
        self._is_local = self.node_url is None
        if self._is_local:
            self._paths = _find_files(agents_files, config_file, environ)
            node = _find_follower(self._paths, environ)
            self.node_url = None if node is None else node.url

    def plan(self, arguments: PlanArguments) -> AgentPlan:
        """What adding agents would do. Raises FabricError."""
        if self.node_url is not None:
            try:
                request = {**msgspec.structs.asdict(arguments), "path": self._own_path}
                return msgspec.convert(self._administer("agent.plan", request, _PLAN_TIMEOUT), AgentPlan)
            except Forbidden as error:
                self._refuse(error)
        return asyncio.run(_build_files(self._paths, self._environ).plan(arguments))

    def add(self, plan: AgentPlan) -> None:
        """Raises FabricError."""
        if self.node_url is not None:
            self._administer("agent.add", {"entries": plan.entries, "path": plan.path})
        else:
            asyncio.run(_build_files(self._paths, self._environ).add(plan.entries, plan.path))

    def switch_tool(self, name: str, *, on: bool) -> tuple[str, str, ToolSwitch]:
        """The agent, the pattern, and what was done. Raises FabricError."""
        if self.node_url is not None:
            rows = self._administer("agents", {})["agents"]
            agent_id, pattern = split_tool_name(name, [row["agent_id"] for row in rows])
            reply = self._administer("agent.switch", {"agent_id": agent_id, "tool": pattern, "on": on})
            matched = None if reply["matched"] is None else tuple(reply["matched"])
            return agent_id, pattern, ToolSwitch(
                path=reply["path"], is_changed=reply["changed"], matched=matched, remarks=tuple(reply["remarks"])
            )  # fmt: skip
        files = _build_files(self._paths, self._environ)
        agent_id, pattern = split_tool_name(name, asyncio.run(files.list_agent_ids()))
        return agent_id, pattern, asyncio.run(files.switch_tool(agent_id, pattern, on=on))

    def report_who_wrote(self, path: str) -> None:
        """Tell the user who has written the file, and when it counts."""
        if self.node_url is not None:
            remark(f"The node at {self.node_url} wrote {path} and uses it now.")
        elif self._refusal is not None:
            remark(f"This command wrote {path}, because the node refused: {self._refusal} The node follows the file.")
        elif (node := _find_in_folder(self._environ)) is not None:
            remark(f"Node '{node.name}' runs in this folder without {path}. Restart it to use the file.")
        else:
            remark(f"No node runs with {path}, so this command wrote it. It counts when a node starts with it.")

    def _administer(self, request: str, arguments: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        return administer(self.node_url, self._token, request, timeout, **arguments)

    def _refuse(self, error: Forbidden) -> None:
        """A node that other machines reach adds no programs for callers that only have a key. A user who may write the
        file of a node on this machine needs no key for that. Raises the error for other nodes.
        """
        if not self._is_local:
            raise error
        self.node_url, self._refusal = None, error.message if error.message.endswith(".") else f"{error.message}."

    @property
    def _own_path(self) -> str | None:
        return str(self._paths[0].resolve()) if self._paths else None


def plan_here(arguments: PlanArguments, agents_file: Path | None) -> AgentPlan:
    """What would be added, without asking a node. Raises FabricError."""
    return asyncio.run(_build_files((agents_file or Path(AGENTS_FILE),), read_environment()).plan(arguments))


def _build_files(paths: Sequence[Path], environ: Mapping[str, str]) -> AgentFiles:
    module = load_module("a2a_fabric.admin.agent_files")
    files: AgentFiles = module.AgentFiles(paths, environ, Path.cwd(), may_run_programs=True)
    return files


def _find_files(
    agents_files: Sequence[str | Path], config_file: Path | None, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """Those that were named, else those of the configuration, else the default one. Raises ConfigError."""
    if agents_files and config_file is None:
        return tuple(map(Path, agents_files))
    return plan_setup(config_file, agents_files, None, environ).manifest_files or (Path(AGENTS_FILE),)


def _find_follower(paths: Sequence[Path], environ: Mapping[str, str]) -> RunningNode | None:
    """The node of this user that runs with the first of these files; of several, the one that was started last."""
    wanted = str(paths[0].resolve())
    nodes = [each for each in StateFolder(environ).list_entries() if each.is_running and wanted in each.files]
    return max(nodes, key=attrgetter("started_at"), default=None)


def _find_in_folder(environ: Mapping[str, str]) -> RunningNode | None:
    folder = str(Path.cwd())
    return next(
        (each for each in StateFolder(environ).list_entries() if each.is_running and each.folder == folder), None
    )
