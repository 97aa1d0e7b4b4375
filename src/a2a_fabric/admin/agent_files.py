"""Changes that an operator makes to the files of agents while the node runs: new agents, agents and tools on or off.

Only `agents.yaml` files are changed, never folders, registries or addresses. The rest of the text stays, a change that
could do more than it says is refused, and the node follows the file as if it had been edited by hand."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.admin.probe import ProbeTarget, run_probe
from a2a_fabric.core.agent import Manifest, ToolChoice, normalize_name
from a2a_fabric.core.errors import BadInput, Conflict, Forbidden
from a2a_fabric.importing import jsonc
from a2a_fabric.importing.agents_yaml import add_entries, set_enabled, set_excluded_tools, unified_diff
from a2a_fabric.importing.files import read_text, replace_text
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.importing.servers import build_entries, parse_servers
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.registry.tool_choice import matches_any

_MAX_TEXT = 1024 * 1024
_SOURCE = "the given text"


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that would be added, the change of the file, and what the operator has to know."""

    entries: tuple[dict[str, Any], ...] = ()
    path: str = ""
    diff: str = ""
    remarks: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    attempts: tuple[dict[str, Any], ...] = ()
    capabilities: tuple[str, ...] = ()


class AgentFiles:
    """`environ` is what programs inherit while they are probed. `may_run_programs`: see `console.programs`."""

    def __init__(self, paths: Sequence[Path], environ: Mapping[str, str], *, may_run_programs: bool) -> None:
        self._paths = paths
        self._environ = environ
        self._may_run_programs = may_run_programs
        self._lock = asyncio.Lock()  # each change begins with what the one before has written

    @property
    def can_add(self) -> bool:
        return bool(self._paths)

    @property
    def may_run_programs(self) -> bool:
        return self._may_run_programs

    async def find_entry(self, agent_id: str) -> tuple[Path, Manifest] | None:
        """The file that declares an agent, and its manifest there; None if no file that can be changed does."""
        return await asyncio.to_thread(self._find_entry, agent_id)

    async def switch_agent(self, agent_id: str, *, on: bool) -> Path:
        """Raises Conflict if no file declares it, and ConfigError."""
        return await self._edit(
            agent_id, lambda text, manifest, name: set_enabled(text, agent_id, enabled=on, name=name)
        )

    async def switch_tool(self, agent_id: str, tool: str, *, on: bool) -> Path:
        """Raises Conflict if no file declares the agent or a pattern leaves out more than this tool; ConfigError."""

        def edit(text: str, manifest: Manifest, name: str) -> str:
            excluded = (manifest.tools or ToolChoice()).exclude
            kept = [each for each in excluded if normalize_name(each) != normalize_name(tool)]
            if on and (covering := [each for each in kept if matches_any(tool, (each,))]):
                raise Conflict(f"'{tool}' is left out by the pattern '{covering[0]}'. Change the pattern in {name}")
            return set_excluded_tools(text, agent_id, kept if on else [*kept, tool], name)

        return await self._edit(agent_id, edit)

    async def plan(self, source: str, agent_id: str | None, headers: Mapping[str, str]) -> AgentPlan:
        """What adding an address, a command line, or the text of an `mcp.json` would do. Nothing is changed.

        Raises BadInput, Conflict, Forbidden, ConfigError.
        """
        path, text = await self._read_first()
        present = await asyncio.to_thread(self._read_all)
        if source.lstrip().startswith("{"):
            return self._plan_servers(source, path, text, present)
        target = ProbeTarget(argv=_split(source), headers=dict(headers))
        if not target.is_address:
            self._check_programs()
        outcome = await run_probe(target, agent_id, present, self._environ)
        entries = () if outcome.entry is None or outcome.is_present else (outcome.entry,)
        remarks = [f"{outcome.entry['agent_id']}: it is there already"] if outcome.entry and outcome.is_present else []
        if outcome.trouble is not None:
            remarks.append(f"The agent did not list its capabilities: {outcome.trouble}")
        attempts = [
            {"protocol": each.protocol, "outcome": each.outcome, "found": each.finding is not None}
            for each in outcome.report.attempts
        ]
        return AgentPlan(
            entries=entries,
            path=str(path),
            diff=unified_diff(text, add_entries(text, entries, str(path)), path.name),
            remarks=tuple(remarks),
            variables=outcome.variables,
            attempts=tuple(attempts),
            capabilities=tuple(each.name for each in outcome.capabilities),
        )

    async def add(self, entries: Sequence[dict[str, Any]]) -> Path:
        """Write entries that `plan` returned. Raises BadInput, Conflict, Forbidden, ConfigError."""
        manifests = [_to_manifest(entry) for entry in entries]
        if any("command" in each.endpoint or each.runtime in ("process", "claude", "python") for each in manifests):
            self._check_programs()
        async with self._lock:
            path, text = await self._read_first()
            present = await asyncio.to_thread(self._read_all)
            for manifest in manifests:
                if manifest.agent_id in present:
                    raise Conflict(f"Agent '{manifest.agent_id}' exists already. Choose another id")
            await asyncio.to_thread(replace_text, path, add_entries(text, entries, str(path)))
        return path

    def _plan_servers(self, source: str, path: Path, text: str, present: Mapping[str, Manifest]) -> AgentPlan:
        if len(source) > _MAX_TEXT:
            raise BadInput(f"The text is longer than {_MAX_TEXT} characters")
        parsed = parse_servers(jsonc.parse(source, _SOURCE), _SOURCE)
        imported = build_entries([parsed], present, References(home=str(Path.home())))
        if any("command" in entry["endpoint"] for entry in imported.entries):
            self._check_programs()
        return AgentPlan(
            entries=imported.entries,
            path=str(path),
            diff=unified_diff(text, add_entries(text, imported.entries, str(path)), path.name),
            remarks=imported.remarks,
            variables=imported.variables,
        )

    async def _edit(self, agent_id: str, edit: Callable[[str, Manifest, str], str]) -> Path:
        async with self._lock:
            found = await self.find_entry(agent_id)
            if found is None:
                raise Conflict(
                    f"Agent '{agent_id[:128]}' is in no agents.yaml of this node, so it cannot be switched here. "
                    "Change it where it is declared, or unregister it"
                )
            path, manifest = found
            text = await asyncio.to_thread(read_text, path) or ""
            after = edit(text, manifest, str(path))
            if after != text:
                await asyncio.to_thread(replace_text, path, after)
            return path

    async def _read_first(self) -> tuple[Path, str]:
        if not self._paths:
            raise Conflict("This node has no agents.yaml to add to. Name one under `agents` in fabric.yaml")
        path = self._paths[0]
        return path, await asyncio.to_thread(read_text, path) or ""

    def _find_entry(self, agent_id: str) -> tuple[Path, Manifest] | None:
        for path in self._paths:
            if not path.exists():
                continue
            for manifest in read_manifests(path):
                if manifest.agent_id == agent_id:
                    return path, manifest
        return None

    def _read_all(self) -> dict[str, Manifest]:
        found: dict[str, Manifest] = {}
        for path in self._paths:
            if path.exists() and (read_text(path) or "").strip():
                found |= {each.agent_id: each for each in read_manifests(path)}
        return found

    def _check_programs(self) -> None:
        if not self._may_run_programs:
            raise Forbidden(
                "Programs cannot be added here: other machines reach this node, and a program would run on it. Add it "
                "to agents.yaml by hand, or set `console.programs: true`"
            )


def _split(source: str) -> tuple[str, ...]:
    try:
        argv = shlex.split(source)
    except ValueError as exc:
        raise BadInput(f"This is no command line: {exc}", field="source") from exc
    if not argv:
        raise BadInput("Name an address or a command, or paste an mcp.json", field="source")
    return tuple(argv)


def _to_manifest(entry: dict[str, Any]) -> Manifest:
    try:
        return msgspec.convert(entry, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"This is no agent: {exc}"[:300], field="entries") from exc
