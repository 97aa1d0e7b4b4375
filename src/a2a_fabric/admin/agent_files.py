"""Changes that an operator makes to the files of agents: new agents, agents and tools on or off.

A running node makes them for the console and the command line, and follows its files as if they had been edited by
hand; the command line makes them itself if no node runs. Only `agents.yaml` files are changed, never folders,
registries or addresses. The rest of the text stays, and a change that could do more than it says is refused."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.admin.agent_changes import AgentPlan, PlanArguments, ToolSwitch
from a2a_fabric.admin.probe import ProbeTarget, run_probe
from a2a_fabric.core.agent import Manifest, ToolChoice, normalize_name
from a2a_fabric.core.errors import BadInput, Conflict, Forbidden, suggest_for_pattern
from a2a_fabric.core.files import read_text, replace_text, report_write_errors
from a2a_fabric.importing import jsonc
from a2a_fabric.importing.agents_yaml import add_entries, set_enabled, set_excluded_tools, unified_diff
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import build_entries, keep_new_entries, parse_servers
from a2a_fabric.plugins import canonical_kind
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.registry.tool_choice import is_listed, matches_any

_LOCK_SECONDS, _LOCK_PAUSE = 10.0, 0.02
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
        diff = unified_diff(text, add_entries(text, plan.entries, str(path)), path.name)
        return msgspec.structs.replace(plan, path=str(path), diff=diff)

    async def add(self, entries: Sequence[dict[str, Any]], path: str | None = None) -> Path:
        """Write entries that `plan` returned. Raises BadInput, Conflict, Forbidden, ConfigError."""
        self._check_entries(entries)
        found, _ = await self._read(path)
        async with _lock_folder(found):
            _, text = await self._read(path)
            present = await asyncio.to_thread(self._read_all)
            for entry in entries:
                if entry["agent_id"] in present:
                    raise Conflict(f"Agent '{entry['agent_id']}' exists already. Choose another id")
            await asyncio.to_thread(replace_text, found, add_entries(text, entries, str(found)))
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
        if (declared := await self.find_entry(agent_id)) is None:
            raise Conflict(
                f"Agent '{agent_id[:128]}' is in no agents.yaml of this node, so it cannot be switched here. "
                "Change it where it is declared, or unregister it"
            )
        async with _lock_folder(declared[0]):
            path, manifest = await self.find_entry(agent_id) or declared
            text = await asyncio.to_thread(read_text, path) or ""
            after = edit(text, manifest, str(path))
            if after != text:
                await asyncio.to_thread(replace_text, path, after)
            return path, after != text

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


@asynccontextmanager
async def _lock_folder(path: Path) -> AsyncIterator[None]:
    """One change at a time, also of other processes: each begins with what the one before has written.

    The folder is locked and not the file, which is replaced by each change. Raises Conflict.
    """
    descriptor = await asyncio.to_thread(_open_folder, path)
    try:
        ends_at = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > ends_at:
                raise Conflict(f"Another process has been changing {path} for {_LOCK_SECONDS:g} s. Try again later")
            await asyncio.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _open_folder(path: Path) -> int:
    """Raises ConfigError."""
    with report_write_errors(path):
        return os.open(path.resolve().parent, os.O_RDONLY)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


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
