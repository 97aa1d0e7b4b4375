"""Changes that an operator makes to the files of agents: new agents, agents and tools on or off.

A running node makes them for the console and the command line, and follows its files as if they had been edited by
hand; the command line makes them itself if no node runs. Only `agents.yaml` files are changed, never folders,
registries or addresses. The rest of the text stays, and a change that could do more than it says is refused."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from a2a_fabric.admin.agent_changes import AgentPlan, PlanArguments, ToolSwitch
from a2a_fabric.admin.probe import ProbeTarget, run_probe
from a2a_fabric.core.agent import Manifest, ToolChoice, normalize_name
from a2a_fabric.core.errors import BadInput, ConfigError, Conflict, Forbidden, suggest_for_pattern
from a2a_fabric.core.files import lock_folder, read_text, replace_text
from a2a_fabric.importing import jsonc
from a2a_fabric.importing.agents_yaml import add_entries, set_enabled, set_excluded_tools, unified_diff
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import build_entries, keep_new_entries, parse_servers
from a2a_fabric.plugins import canonical_kind
from a2a_fabric.registry.sources.files import check_manifests, read_manifests
from a2a_fabric.registry.tool_choice import is_listed, matches_any

T = TypeVar("T")

_MAX_TEXT = 1024 * 1024
# Those that only talk to an address. All others, also of plug-ins, may run programs or code on this machine.
_REMOTE_RUNTIMES = frozenset({"a2a", "acp", "agentzero", "fabric", "grpc", "http", "mcp", "rest", "rpc"})
_SOURCE = "the given text"


class AgentFiles:
    """`environ` is what programs inherit while they are probed, and `base` where they are started.

    `may_run_programs`: see `console.programs`.
    """

    def __init__(
        self, paths: Sequence[Path], environ: Mapping[str, str], base: Path, *, may_run_programs: bool
    ) -> None:
        self._paths = paths
        self._environ = environ
        self._base = base
        self._may_run_programs = may_run_programs
        # One change at a time: one that waits for another process keeps no thread from the rest of the node.
        self._executor = ThreadPoolExecutor(1, "agent-files")

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
        path, _ = await self._edit(
            agent_id, lambda text, manifest, name: set_enabled(text, agent_id, enabled=on, name=name)
        )
        return path

    async def switch_tool(
        self, agent_id: str, pattern: str, *, on: bool, known: Sequence[str] | None = None
    ) -> ToolSwitch:
        """`known` are the tools that the agent offers now. Raises Conflict if no file declares the agent, or if another
        pattern leaves the tool out; BadInput if none of the known tools matches; ConfigError.
        """
        matched = tuple(name for name in known or () if matches_any(name, (pattern,)))
        remarks: list[str] = []

        def edit(text: str, manifest: Manifest, name: str) -> str:
            choice = manifest.tools or ToolChoice()
            if on:
                excluded = _include_tools(choice, agent_id, pattern, remarks)
            elif known and not matched and not _is_excluded(choice, pattern):
                suggestion = suggest_for_pattern(pattern, known)
                raise BadInput(f"No tool of '{agent_id}' matches '{pattern}', so nothing was changed{suggestion}")
            else:
                excluded = _exclude_tools(choice, agent_id, pattern, remarks)
            return text if excluded == choice.exclude else set_excluded_tools(text, agent_id, excluded, name)

        path, is_changed = await self._edit(agent_id, edit)
        return ToolSwitch(
            path=str(path),
            is_changed=is_changed,
            matched=None if known is None else matched,
            remarks=tuple(remarks),
        )

    async def list_agent_ids(self) -> list[str]:
        return list(await asyncio.to_thread(self._read_all))

    async def plan(self, request: PlanArguments) -> AgentPlan:
        """What adding agents would do. Nothing is changed. Raises BadInput, Conflict, Forbidden, ConfigError."""
        path, text = await self._read(request.path)
        present = await asyncio.to_thread(self._read_all)
        if (request.source is None) == (not request.entries):
            raise BadInput("Name either a `source` or `entries`", field="source")
        if request.source is None:
            plan = self._plan_entries(request.entries, present)
        elif request.source.lstrip().startswith("{"):
            plan = self._plan_servers(request.source, present)
        else:
            plan = await self._plan_probed(request, request.source, present)
        after = await asyncio.to_thread(_add_entries, text, plan.entries, path)
        diff = unified_diff(text, after, path.name)
        return msgspec.structs.replace(plan, path=str(path), diff=diff)

    async def add(self, entries: Sequence[dict[str, Any]], path: str | None = None) -> Path:
        """Write entries that `plan` returned. Raises BadInput, Conflict, Forbidden, ConfigError."""
        self._check_entries(entries)
        found, _ = await self._read(path)

        def write() -> None:
            with lock_folder(found):
                present = self._read_all()
                for entry in entries:
                    if entry["agent_id"] in present:
                        raise Conflict(f"Agent '{entry['agent_id']}' exists already. Choose another id")
                replace_text(found, _add_entries(read_text(found) or "", entries, found))

        await self._run_to_end(write)
        return found

    def _plan_entries(self, entries: Sequence[dict[str, Any]], present: Mapping[str, Manifest]) -> AgentPlan:
        self._check_entries(entries)
        new = keep_new_entries(entries, present)
        return AgentPlan(entries=new.entries, remarks=new.remarks)

    def _plan_servers(self, source: str, present: Mapping[str, Manifest]) -> AgentPlan:
        if len(source) > _MAX_TEXT:
            raise BadInput(f"The text is longer than {_MAX_TEXT} characters")
        parsed = parse_servers(jsonc.parse(source, _SOURCE), _SOURCE)
        imported = build_entries([parsed], present, References(home=str(Path.home())))
        self._check_entries(imported.entries)
        return AgentPlan(entries=imported.entries, remarks=imported.remarks, variables=imported.variables)

    async def _plan_probed(self, request: PlanArguments, source: str, present: Mapping[str, Manifest]) -> AgentPlan:
        target = ProbeTarget(
            argv=_split(source), headers=dict(request.headers), env=dict(request.env), timeout=request.timeout_seconds
        )
        if not target.is_address:
            self._check_programs()
        outcome = await run_probe(target, request.agent_id, present, self._environ, self._base)
        entry = outcome.entry
        remarks = [f"{entry['agent_id']}: it is there already"] if entry and outcome.is_present else []
        if outcome.trouble is not None:
            remarks.append(f"The agent did not list its capabilities: {outcome.trouble}")
        attempts = [
            {
                "protocol": each.protocol,
                "outcome": each.outcome,
                "seconds": round(each.seconds, 3),
                "found": each.finding is not None,
            }
            for each in outcome.report.attempts
        ]
        return AgentPlan(
            entries=() if entry is None or outcome.is_present else (entry,),
            found=entry,
            remarks=tuple(remarks),
            variables=outcome.variables,
            target=outcome.report.target,
            attempts=tuple(attempts),
            capabilities=outcome.capabilities,
            trouble=outcome.trouble,
        )

    async def _edit(self, agent_id: str, edit: Callable[[str, Manifest, str], str]) -> tuple[Path, bool]:
        """The file that declares the agent, and whether its text has changed."""
        return await self._run_to_end(lambda: self._edit_now(agent_id, edit))

    async def _run_to_end(self, change: Callable[[], T]) -> T:
        """If the caller leaves, the change that it began is still made whole, under its lock."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, change))

    def _edit_now(self, agent_id: str, edit: Callable[[str, Manifest, str], str]) -> tuple[Path, bool]:
        path, _ = self._require_entry(agent_id)
        with lock_folder(path):
            found, manifest = self._require_entry(agent_id)
            if found != path:
                raise Conflict(f"Agent '{agent_id[:128]}' has just moved to {found}. Try again")
            text = read_text(path) or ""
            after = edit(text, manifest, str(path))
            if after != text:
                _check_text(after, path)
                replace_text(path, after)
            return path, after != text

    def _require_entry(self, agent_id: str) -> tuple[Path, Manifest]:
        if (declared := self._find_entry(agent_id)) is None:
            raise Conflict(
                f"Agent '{agent_id[:128]}' is in no agents.yaml of this node, so it cannot be switched here. "
                "Change it where it is declared, or unregister it"
            )
        return declared

    async def _read(self, wanted: str | None) -> tuple[Path, str]:
        """The file to add to, the first one unless another is named, and its text. Raises Conflict, ConfigError."""
        if not self._paths:
            raise Conflict("This node has no agents.yaml to add to. Name one under `agents` in fabric.yaml")
        path = self._paths[0] if wanted is None else self._find_path(wanted)
        return path, await asyncio.to_thread(read_text, path) or ""

    def _find_path(self, wanted: str) -> Path:
        for path in self._paths:
            if wanted in (str(path), str(path.resolve())):
                return path
        names = ", ".join(map(str, self._paths))
        raise BadInput(f"'{wanted[:200]}' is no file of agents of this node. They are: {names}", field="path")

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

    def _check_entries(self, entries: Sequence[dict[str, Any]]) -> None:
        """Raises BadInput for one that is no agent, Forbidden for a program that may not be added."""
        manifests = [_to_manifest(entry) for entry in entries]
        if any(map(_may_run_here, manifests)):
            self._check_programs()

    def _check_programs(self) -> None:
        if not self._may_run_programs:
            raise Forbidden(
                "Programs cannot be added here: other machines reach this node, and a program would run on it. Add it "
                "to agents.yaml by hand, or set `console.programs: true`"
            )


def _is_excluded(choice: ToolChoice, pattern: str) -> bool:
    return normalize_name(pattern) in map(normalize_name, choice.exclude)


def _exclude_tools(choice: ToolChoice, agent_id: str, pattern: str, remarks: list[str]) -> tuple[str, ...]:
    """What `tools.exclude` is to be."""
    if _is_excluded(choice, pattern):
        remarks.append(f"{agent_id}.{pattern} is disabled already.")
        return choice.exclude
    return (*choice.exclude, pattern)


def _include_tools(choice: ToolChoice, agent_id: str, pattern: str, remarks: list[str]) -> tuple[str, ...]:
    """What `tools.exclude` is to be. Raises Conflict if another pattern leaves the tools out."""
    kept = tuple(each for each in choice.exclude if normalize_name(each) != normalize_name(pattern))
    if covering := [each for each in kept if matches_any(pattern, (each,))]:
        raise Conflict(
            f"'{pattern}' is left out by '{covering[0]}', so nothing was changed: enable that pattern, then "
            "disable the tools that you do not want"
        )
    name = f"{agent_id}.{pattern}"
    if kept == choice.exclude:
        remarks.append(f"{name} was not disabled. '{agent_id}' leaves out: {', '.join(choice.exclude) or 'nothing'}")
    if choice.include is not None and not is_listed(choice, pattern):
        remarks.append(f"`tools.include` of '{agent_id}' lists other tools only, so {name} stays left out.")
    return kept


def _add_entries(text: str, entries: Sequence[dict[str, Any]], path: Path) -> str:
    """Raises BadInput for entries with which the file could not be read, and ConfigError."""
    after = add_entries(text, entries, str(path))
    if entries:
        _check_text(after, path)
    return after


def _check_text(text: str, path: Path) -> None:
    """A node that cannot read the file does not start. Raises BadInput."""
    try:
        check_manifests(text, str(path))
    except ConfigError as error:
        raise BadInput(f"Nothing was changed, because the file could not be read any more: {error.message}") from error


def _split(source: str) -> tuple[str, ...]:
    try:
        argv = shlex.split(source)
    except ValueError as exc:
        raise BadInput(f"This is no command line: {exc}", field="source") from exc
    if not argv:
        raise BadInput("Name an address or a command, or paste an mcp.json", field="source")
    return tuple(argv)


def _may_run_here(manifest: Manifest) -> bool:
    """Whether the agent may run something on this machine, or names a folder of it."""
    kind = manifest.runtime or manifest.implied_runtime
    is_remote = kind is None or canonical_kind(kind) in _REMOTE_RUNTIMES
    return not is_remote or "command" in manifest.endpoint or manifest.origin is not None


def _to_manifest(entry: dict[str, Any]) -> Manifest:
    try:
        return msgspec.convert(entry, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"This is no agent: {exc}"[:300], field="entries") from exc
