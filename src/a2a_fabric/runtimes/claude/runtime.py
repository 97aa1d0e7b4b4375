"""Runtime for agents that are folders for Claude Code: instructions in CLAUDE.md, MCP servers in .mcp.json.

The program is started in the agent's folder for each call, one at a time per conversation. A session's id is
derived from the conversation, so it is the same after a restart and on another node. Whether the session
exists already is remembered, or found out by trying."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    derive_conversation_id,
    describe_unsupported_parts,
    ignore_event,
    parts_from_input,
)
from a2a_fabric.core.coordination import describe_rules
from a2a_fabric.core.errors import AgentBusy, AgentOffline
from a2a_fabric.core.forwarding import IDENTITY_VARIABLE
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import chain_to_environment, format_traceparent
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.claude.command import (
    ClaudeCallOptions,
    ClaudeEndpoint,
    ClaudeInput,
    SessionMode,
    build_arguments,
    build_input,
    program_from_endpoint,
    read_endpoint,
    read_folder_info,
)
from a2a_fabric.runtimes.claude.instructions import KNOWLEDGE_FOLDER, SystemPrompt
from a2a_fabric.runtimes.claude.process import (
    ClaudeOutput,
    ClaudeProcess,
    ClaudeProcessLimits,
    ClaudeVersionCheck,
    error_from_exit,
    error_from_output,
    is_unknown_session,
    is_used_session,
    result_from_output,
)
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.dependencies import is_needed
from a2a_fabric.runtimes.mcp_servers import MCP_CONFIG_FILE, list_references, read_mcp_servers
from a2a_fabric.runtimes.programs import NodeMcpServer, ProcessStarter, ProgramSpec, build_node_mcp_server
from a2a_fabric.runtimes.prompt import DEFAULT_CAPABILITY, build_prompt

_NAMESPACE = uuid.UUID("5a1c9a44-5a4c-4d3e-9d42-6f0f0a1f7c11")


class ClaudeSession:
    """Takes one turn at a time; `exit_task` ends the process of the previous turn."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.exists = False
        self.lock = asyncio.Lock()
        self.exit_task: asyncio.Task[None] | None = None

    async def wait_idle(self) -> None:
        """Wait until no process writes to the session any more."""
        if self.exit_task is not None:
            await asyncio.wait([self.exit_task])


class ClaudeSessions:
    """The sessions by conversation; the least recently used one is forgotten first."""

    def __init__(self, agent_id: str, max_sessions: int) -> None:
        self._agent_id = agent_id
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, ClaudeSession] = OrderedDict()

    def get_or_create(self, call: Call) -> ClaudeSession | None:
        """None for a call without a conversation. Two callers with the same conversation id get two sessions."""
        conversation_id = derive_conversation_id(call)
        if conversation_id is None:
            return None
        session_id = str(uuid.uuid5(_NAMESPACE, msgspec.json.encode([self._agent_id, conversation_id]).decode()))
        session = self._sessions.setdefault(session_id, ClaudeSession(session_id))
        self._sessions.move_to_end(session_id)
        self._trim()
        return session

    def _trim(self) -> None:
        """Sessions in use and the newest ones stay."""
        if len(self._sessions) <= self._max_sessions:
            return
        idle = [key for key, session in self._sessions.items() if not session.lock.locked()][:-1]
        for key in idle[: len(self._sessions) - self._max_sessions]:
            del self._sessions[key]


_PROTOCOL = "Claude Code"
_SESSION_LOST_NOTE = "the session of this conversation was lost; it begins again"


class _WrongSessionMode(Exception):
    """The session exists although it was to be begun, or is missing although it was to be resumed."""


class ClaudeRuntime:
    def __init__(
        self,
        manifest: Manifest,
        endpoint: ClaudeEndpoint,
        program: ProgramSpec,
        limits: ClaudeProcessLimits,
        node: NodeMcpServer | None,
        context: RuntimeContext,
    ) -> None:
        self.manifest = manifest
        self._environ = context.environ
        self._signer = context.signer
        own_knowledge = program.cwd / (endpoint.knowledge or KNOWLEDGE_FOLDER)
        overlay = None if context.overlay is None else context.overlay / manifest.agent_id / KNOWLEDGE_FOLDER
        self._prompt = SystemPrompt(
            program.cwd,
            endpoint.instructions,
            {"Personality": manifest.personality, "Work with other agents": describe_rules(manifest)},
            # A folder without a card keeps its knowledge for its instructions to name.
            (*((own_knowledge,) if manifest.origin is not None else ()), *((overlay,) if overlay is not None else ())),
        )
        self._endpoint = endpoint
        self._program = program
        self._limits = limits
        self._node = node
        self._version_check = ClaudeVersionCheck(program)
        self._sessions = ClaudeSessions(manifest.agent_id, endpoint.max_sessions)
        self._slots = asyncio.Semaphore(endpoint.max_concurrent)
        self._pending = 0
        self._starts = ProcessStarter()
        self._processes: set[ClaudeProcess] = set()
        self._exit_tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if self._pending >= self._endpoint.max_pending:
            raise AgentBusy(
                f"The agent is busy with {self._pending} calls, the most it takes at a time",
                agent_id=self.manifest.agent_id,
            )
        ends_at = asyncio.get_running_loop().time() + call.target.timeout_ms / 1000
        event_sink = emit if call.response.stream else ignore_event
        self._pending += 1
        try:
            return await self._run_in_turn(call, event_sink, ends_at)
        finally:
            self._pending -= 1

    async def health(self) -> Status:
        await self._version_check.check()
        return "online"

    async def describe(self) -> Manifest:
        self._program.find_executable()
        folder_info = await asyncio.to_thread(read_folder_info, self._folder)
        capability = Capability(
            name=DEFAULT_CAPABILITY,
            description=folder_info.description or f"Ask {folder_info.name or self.manifest.agent_id} in words.",
            streaming=True,
            modalities=("text", "json", "image"),
        )
        published = Manifest(
            agent_id=self.manifest.agent_id,
            endpoint=self.manifest.endpoint,
            capabilities=(capability,),
            display_name=folder_info.name,
            description=folder_info.description,
            version=folder_info.version,
        )
        self.manifest = complete_manifest(self.manifest, published)
        return self.manifest

    async def aclose(self) -> None:
        """Stops the programs, which ends the running calls."""
        await self._starts.aclose()
        if tasks := [asyncio.ensure_future(process.stop()) for process in self._processes]:
            await asyncio.wait(tasks)
        if self._exit_tasks:
            await asyncio.wait(self._exit_tasks)
        self._prompt.close()

    @property
    def _folder(self) -> Path:
        return self._program.cwd

    async def _run_in_turn(self, call: Call, emit: Emit, ends_at: float) -> Result:
        """One run per conversation at a time, and not too many in all."""
        session = self._sessions.get_or_create(call)
        if session is None:
            async with self._slots:
                return await self._run_program(call, emit, ends_at, None)
        async with session.lock, self._slots:
            await session.wait_idle()
            return await self._run_in_session(call, emit, ends_at, session)

    async def _run_in_session(self, call: Call, emit: Emit, ends_at: float, session: ClaudeSession) -> Result:
        """Begin or resume the session as remembered; if the program says that was wrong, run again the other way."""
        modes: tuple[SessionMode, SessionMode] = ("resume", "new") if session.exists else ("new", "resume")
        try:
            return await self._run_program(call, emit, ends_at, session, modes[0])
        except _WrongSessionMode:
            pass
        try:
            await session.wait_idle()
            result = await self._run_program(call, emit, ends_at, session, modes[1])
        except _WrongSessionMode as exc:
            why = f"The session {session.session_id} can neither be begun nor resumed"
            raise AgentOffline(why, agent_id=self.manifest.agent_id) from exc
        return add_notes(result, (_SESSION_LOST_NOTE,)) if modes[1] == "new" else result

    async def _run_program(
        self, call: Call, emit: Emit, ends_at: float, session: ClaudeSession | None, mode: SessionMode = "new"
    ) -> Result:
        """Raises _WrongSessionMode if the session is missing or exists already; then no work was done."""
        text = build_prompt(self.manifest, call)
        program_input = build_input(text, parts_from_input(call.input), may_command=self._endpoint.commands)
        output = ClaudeOutput(
            self.manifest.agent_id,
            has_partial_messages=call.response.stream,
            required_servers=self._list_required_servers(call.target.capability),
        )
        prompt = await asyncio.to_thread(self._prompt.find_file)
        servers = await asyncio.to_thread(self._select_servers, call.target.capability)
        variables = await asyncio.to_thread(self._list_granted_variables, servers)
        program = self._prepare_program(call, program_input, session, mode, prompt, servers)
        program = replace(program, env={**variables, **program.env})
        process = ClaudeProcess(await self._starts.start(program), self._limits)
        self._processes.add(process)
        try:
            exit_reason = await process.run(program_input.stdin, output, emit, ends_at)
        finally:
            self._finish_in_background(process, session)
        result = self._result_from_run(output, exit_reason)
        if session is not None:
            session.exists = True
        return add_notes(result, describe_unsupported_parts(program_input.unsupported, _PROTOCOL))

    def _result_from_run(self, output: ClaudeOutput, exit_reason: str) -> Result:
        record = output.result
        if record is None:
            if not output.has_started and is_used_session(exit_reason):
                raise _WrongSessionMode
            raise error_from_exit(output, exit_reason)
        if is_unknown_session(record):
            raise _WrongSessionMode
        if record.get("is_error"):
            raise error_from_output(output, record)
        return result_from_output(output, record)

    def _list_required_servers(self, capability: str) -> frozenset[str]:
        dependencies = self.manifest.dependencies
        mcps = () if dependencies is None else dependencies.mcps
        return frozenset(each.name for each in mcps if each.required and is_needed(each, capability))

    def _select_servers(self, capability: str) -> dict[str, Any] | None:
        """The MCP servers that the capability needs; None if the agent does not say which it needs."""
        dependencies = self.manifest.dependencies
        if dependencies is None or not dependencies.mcps:
            return None
        servers = self._read_servers()
        names = [each.name for each in dependencies.mcps if is_needed(each, capability)]
        return {name: servers[name] for name in names if name in servers}

    def _read_servers(self) -> dict[str, Any]:
        return read_mcp_servers(self._folder / (self._endpoint.mcp_config or MCP_CONFIG_FILE)) or {}

    def _list_granted_variables(self, servers: dict[str, Any] | None) -> dict[str, str]:
        """The variables to which the MCP servers refer, as far as the agent may have them."""
        granted = self._endpoint.mcp_env
        if servers is None and self.manifest.origin is not None:  # a card that names no servers uses all of them
            servers = self._read_servers()
        names = {name for name, _ in list_references(servers or {}) if granted is None or name in granted}
        return {name: self._environ[name] for name in names if name in self._environ}

    def _prepare_program(
        self,
        call: Call,
        program_input: ClaudeInput,
        session: ClaudeSession | None,
        mode: SessionMode,
        prompt: Path | None,
        servers: dict[str, Any] | None,
    ) -> ProgramSpec:
        capability = self.manifest.find_capability(call.target.capability)
        options = ClaudeCallOptions(
            stream=call.response.stream,
            schema=capability.output_schema if capability is not None else None,
            session=None if session is None else (mode, session.session_id),
            prompt=prompt,
            own_instructions=self._prompt.own_file if self._prompt.own_file.is_file() else None,
            servers=servers,
        )
        chain_env = chain_to_environment(call.delegation_chain)
        node = self._node and replace(self._node, env={**self._node.env, **chain_env})
        arguments = build_arguments(self._endpoint, self._folder, options, node)
        trace_env = {"FABRIC_TRACE_ID": call.trace.trace_id, "TRACEPARENT": format_traceparent(call.trace), **chain_env}
        if self._signer is not None:
            trace_env[IDENTITY_VARIABLE] = self._signer.sign_content(call, program_input.stdin)
        return replace(
            self._program,
            argv=(*self._program.argv, *program_input.options, *arguments),
            env={**trace_env, **self._program.env},
        )

    def _finish_in_background(self, process: ClaudeProcess, session: ClaudeSession | None) -> None:
        """End the process in the background; only the next turn of its conversation waits for that."""
        exit_task = asyncio.ensure_future(process.finish())
        self._exit_tasks.add(exit_task)
        exit_task.add_done_callback(self._exit_tasks.discard)
        exit_task.add_done_callback(lambda _: self._processes.discard(process))
        if session is not None:
            session.exit_task = exit_task


def build(manifest: Manifest, context: RuntimeContext) -> ClaudeRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    return ClaudeRuntime(
        manifest,
        endpoint,
        program_from_endpoint(manifest.agent_id, endpoint, context),
        ClaudeProcessLimits(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace),
        build_node_mcp_server(context.environ) if endpoint.offer_node else None,
        context,
    )


plugin = RuntimePlugin(build=build)
