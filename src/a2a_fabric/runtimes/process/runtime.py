"""Runtime: an agent that is a program on this machine, over JSON lines (`jsonl`) or with one process per call.

A program that is started for each call reads its arguments, prints its answer and exits. The output is
the answer: a JSON object, or text. A program with more to say prints the reply of the plain contract:
`{"ok": true, "result": {…}, "parts": […]}`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    bind_arguments,
    describe_unbound_attachments,
    describe_unsupported_parts,
    parts_from_input,
)
from a2a_fabric.core.errors import AgentBusy, BadInput, PayloadTooLarge, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.forwarding import IDENTITY_VARIABLE, CallSigner
from a2a_fabric.core.json_text import find_number_problem
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import chain_to_environment, format_traceparent
from a2a_fabric.core.result import Part, Result, to_json_object
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.process.jsonl import JsonlLimits, JsonlRuntime
from a2a_fabric.runtimes.programs import ChildProcess, ProcessStarter, ProgramSpec, RestartPolicy, build_program

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class ProcessEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: list[str] | str  # a string is split like a shell would; there is no shell
    transport: Literal["stdio"] = "stdio"
    protocol: Literal["jsonl", "oneshot"] = "jsonl"
    env: dict[str, str] = {}
    cwd: str = "."  # from the folder of the configuration
    line_bytes: Count | None = None  # longest line (jsonl) or whole output (oneshot)
    max_pending: Count = 256
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    # jsonl
    idle_timeout: Annotated[float, Meta(gt=0)] | None = None  # seconds without a call until the program is stopped
    max_restarts: Annotated[int, Meta(ge=0)] | None = None
    backoff: Seconds = 0.5
    backoff_max: Seconds = 30.0
    # oneshot
    args_via: Literal["stdin", "argv"] = "stdin"
    args_as: Literal["json", "text"] = "json"
    max_concurrent: Count = 8


ARGV_BYTES = 100_000  # Linux takes 128 KiB in one argument
OUTPUT_TIMEOUT = 1.0  # for output that is still in the pipe after the child has exited

_CHUNK = 64 * 1024


class _Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reply of the plain contract; any other output is the answer."""

    ok: bool
    result: dict[str, Any] | None = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None


_reply_decoder = msgspec.json.Decoder(_Reply)


class OneshotRuntime:
    def __init__(
        self,
        manifest: Manifest,
        program: ProgramSpec,
        endpoint: ProcessEndpoint,
        output_bytes: int,
        signer: CallSigner | None = None,
    ) -> None:
        self._signer = signer
        self.manifest = manifest
        self._program = program
        self._endpoint = endpoint
        self._output_bytes = output_bytes
        self._slots = asyncio.Semaphore(endpoint.max_concurrent)
        self._pending = 0
        self._starter = ProcessStarter()
        self._running: set[ChildProcess] = set()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        program, stdin_bytes, notes = self._prepare(call)
        if self._pending >= self._endpoint.max_pending:
            raise AgentBusy(
                f"The agent is busy with {self._pending} calls, the most it takes at a time",
                agent_id=self.manifest.agent_id,
            )
        self._pending += 1
        try:
            async with self._slots:
                return add_notes(await self._run(program, stdin_bytes), notes)
        finally:
            self._pending -= 1

    async def health(self) -> Status:
        self._program.find_executable()
        return "online"

    async def describe(self) -> Manifest:
        self._program.find_executable()
        return self.manifest

    async def aclose(self) -> None:
        await self._starter.aclose()
        if destroy_tasks := [asyncio.ensure_future(child.destroy()) for child in self._running]:
            await asyncio.wait(destroy_tasks)

    async def _run(self, program: ProgramSpec, stdin_bytes: bytes) -> Result:
        child = await self._starter.start(program)
        self._running.add(child)
        try:
            output = await self._communicate(child, stdin_bytes)
        finally:
            await child.destroy()
            self._running.discard(child)
        if output is None:
            raise self._make_refusal(program.describe(f"printed more than {self._output_bytes} bytes"))
        if child.returncode:
            failure = UpstreamRefused if child.returncode > 0 else UpstreamInterrupted
            raise failure(child.exit_summary, agent_id=self.manifest.agent_id)
        return self._parse_output(output)

    async def _communicate(self, child: ChildProcess, stdin_bytes: bytes) -> bytes | None:
        """The program's output until it exited; None if the output was too long."""
        feed_task = asyncio.ensure_future(_feed_stdin(child, stdin_bytes))
        read_task = asyncio.ensure_future(_read_output(child, self._output_bytes))
        try:
            await child.ended.wait()
            async with asyncio.timeout(OUTPUT_TIMEOUT):
                return await read_task
        except TimeoutError as exc:
            reason = child.program.describe("ended, but another process holds its output open")
            raise UpstreamInterrupted(reason, agent_id=self.manifest.agent_id) from exc
        finally:
            feed_task.cancel()
            read_task.cancel()
            await asyncio.wait((feed_task, read_task))

    def _prepare(self, call: Call) -> tuple[ProgramSpec, bytes, tuple[str, ...]]:
        """The program for this call, its stdin, and notes on input that it does not receive."""
        capability = self.manifest.find_capability(call.target.capability)
        arguments = bind_arguments(capability, call.input)
        variables = {
            "FABRIC_CAPABILITY": capability.name if capability else call.target.capability,
            "FABRIC_TRACE_ID": call.trace.trace_id,
            "TRACEPARENT": format_traceparent(call.trace),
            **chain_to_environment(call.delegation_chain),
        }
        if "\0" in variables["FABRIC_CAPABILITY"]:
            raise BadInput("The capability's name holds a zero character")
        if self._endpoint.args_as == "json":
            encoded, notes = (
                msgspec.json.encode(arguments),
                describe_unbound_attachments(call.input, arguments, variables["FABRIC_CAPABILITY"]),
            )
        else:
            encoded, notes = (
                _find_text(arguments).encode(),
                describe_unsupported_parts(parts_from_input(call.input), "plain text"),
            )
        if self._signer is not None:
            variables[IDENTITY_VARIABLE] = self._signer.sign_content(call, encoded)
        program = replace(self._program, env=self._program.env | variables)
        if self._endpoint.args_via == "stdin":
            return program, encoded, notes
        return replace(program, argv=(*program.argv, _check_argument(encoded))), b"", notes

    def _parse_output(self, output: bytes) -> Result:
        if problem := find_number_problem(output):
            raise self._make_refusal(problem)
        try:
            reply = _reply_decoder.decode(output)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Result(data=_parse_answer(output))
        if not reply.ok and reply.error is not None:
            raise self._make_refusal(reply.error)
        if not reply.ok or (reply.result is None and not reply.parts):
            return Result(data=_parse_answer(output))
        return Result(data=to_json_object(reply.result), parts=reply.parts, notes=reply.notes)

    def _make_refusal(self, reason: str) -> UpstreamRefused:
        return UpstreamRefused(reason, agent_id=self.manifest.agent_id)


def _find_text(arguments: dict[str, Any]) -> str:
    """The task, or else the only text among the arguments."""
    task = arguments.get("task")
    texts = [task] if task else [value for value in arguments.values() if isinstance(value, str) and value]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise BadInput("This agent takes plain words: send them as the task")
    return texts[0]


def _check_argument(encoded: bytes) -> str:
    if len(encoded) > ARGV_BYTES:
        raise PayloadTooLarge(ARGV_BYTES)
    text = encoded.decode()
    if text.startswith("-") or "\0" in text:
        raise BadInput("Words for this agent must not start with '-' (it would be an option) nor hold a zero character")
    return text


async def _feed_stdin(child: ChildProcess, stdin_bytes: bytes) -> None:
    try:
        child.stdin.write(stdin_bytes)
        await child.stdin.drain()
        child.stdin.close()
    except ConnectionError:
        pass  # the program does not read its input


async def _read_output(child: ChildProcess, limit: int) -> bytes | None:
    output = bytearray()
    while chunk := await child.stdout.read(_CHUNK):
        output += chunk
        if len(output) > limit:
            child.kill()
            return None
    return bytes(output)


def _parse_answer(output: bytes) -> dict[str, Any]:
    """A JSON object is the result; any other output is text."""
    try:
        answer = msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    return {"answer": output.decode(errors="replace").removesuffix("\n").removesuffix("\r")}


def build(manifest: Manifest, context: RuntimeContext) -> JsonlRuntime | OneshotRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = decode_endpoint(manifest, ProcessEndpoint)
    program = build_program(context, manifest.agent_id, endpoint.command, env=endpoint.env, cwd=endpoint.cwd)
    output_bytes = endpoint.line_bytes or context.reply_bytes
    if endpoint.protocol == "oneshot":
        return OneshotRuntime(manifest, program, endpoint, output_bytes, context.signer)
    limits = JsonlLimits(
        line_bytes=output_bytes,
        max_pending=endpoint.max_pending,
        idle_timeout=endpoint.idle_timeout,
        grace=endpoint.grace,
    )
    restart_policy = RestartPolicy(
        first_delay=endpoint.backoff, max_delay=endpoint.backoff_max, max_deaths=endpoint.max_restarts
    )
    return JsonlRuntime(manifest, program, limits, restart_policy, context.signer)


plugin = RuntimePlugin(build=build)
