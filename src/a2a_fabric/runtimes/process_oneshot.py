"""Runtime: a program that is started for each call, reads its arguments, prints its answer and exits.

What it prints is the answer: a JSON object, or words. With more to say than that it
prints the reply of the plain contract: `{"ok": true, "result": {…}, "parts": […]}`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import left_behind, not_carried, noted, parts_of
from a2a_fabric.core.delegation import in_environment
from a2a_fabric.core.errors import (
    AgentBusy,
    BadInput,
    PayloadTooLarge,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.core.trace import traceparent
from a2a_fabric.runtimes.process_child import Child, Program
from a2a_fabric.runtimes.process_starts import Starts

ARGV_BYTES = 100_000  # Linux takes 128 KiB in one argument
OUTPUT_TIMEOUT = 1.0  # for what is still in the pipe of a dead child

_CHUNK = 64 * 1024


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How arguments reach the program, and how much of it there may be."""

    via: Literal["stdin", "argv"]
    written_as: Literal["json", "text"]
    output_bytes: int
    max_concurrent: int
    max_pending: int


class _Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plain contract's; anything else is the answer itself."""

    ok: bool
    result: dict[str, Any] | None = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None


_replies = msgspec.json.Decoder(_Reply)


class OneshotRuntime:
    def __init__(self, manifest: Manifest, program: Program, form: Form) -> None:
        self.manifest = manifest
        self._program = program
        self._form = form
        self._slots = asyncio.Semaphore(form.max_concurrent)
        self._pending = 0
        self._starts = Starts()
        self._running: set[Child] = set()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        program, words, notes = self._prepared(call)
        if self._pending >= self._form.max_pending:
            raise AgentBusy(
                f"The agent is busy with {self._pending} calls, the most it takes at a time",
                agent_id=self.manifest.agent_id,
            )
        self._pending += 1
        try:
            async with self._slots:
                return noted(await self._run(program, words), notes)
        finally:
            self._pending -= 1

    async def health(self) -> Status:
        self._program.path()
        return "online"

    async def describe(self) -> Manifest:
        self._program.path()
        return self.manifest

    async def aclose(self) -> None:
        await self._starts.aclose()
        if ending := [asyncio.ensure_future(child.destroy()) for child in self._running]:
            await asyncio.wait(ending)

    async def _run(self, program: Program, words: bytes) -> Result:
        child = await self._starts.child(program)
        self._running.add(child)
        try:
            output = await self._exchange(child, words)
        finally:
            await child.destroy()
            self._running.discard(child)
        if output is None:
            raise self._refused(program.tell(f"printed more than {self._form.output_bytes} bytes"))
        if child.returncode:
            failure = UpstreamRefused if child.returncode > 0 else UpstreamInterrupted
            raise failure(child.obituary, agent_id=self.manifest.agent_id)
        return self._read(output)

    async def _exchange(self, child: Child, words: bytes) -> bytes | None:
        """What the program printed until it ended; None if that was too much."""
        feeding = asyncio.ensure_future(_feed(child, words))
        reading = asyncio.ensure_future(_output(child, self._form.output_bytes))
        try:
            await child.ended.wait()
            async with asyncio.timeout(OUTPUT_TIMEOUT):
                return await reading
        except TimeoutError as exc:
            why = child.program.tell("ended, but somebody else holds its output open")
            raise UpstreamInterrupted(why, agent_id=self.manifest.agent_id) from exc
        finally:
            feeding.cancel()
            reading.cancel()
            await asyncio.wait((feeding, reading))

    def _prepared(self, call: Call) -> tuple[Program, bytes, tuple[str, ...]]:
        """The program for this call, what it reads on stdin, and what it does not get to see."""
        capability = self.manifest.capability(call.target.capability)
        arguments = arguments_for(capability, call.input)
        told = {
            "FABRIC_CAPABILITY": capability.name if capability else call.target.capability,
            "FABRIC_TRACE_ID": call.trace.trace_id,
            "TRACEPARENT": traceparent(call.trace),
            **in_environment(call.delegation_chain),
        }
        if "\0" in told["FABRIC_CAPABILITY"]:
            raise BadInput("The capability's name holds a zero character")
        program = replace(self._program, env=self._program.env | told)
        if self._form.written_as == "json":
            words, notes = msgspec.json.encode(arguments), left_behind(call.input, arguments, told["FABRIC_CAPABILITY"])
        else:
            words, notes = _words(arguments).encode(), not_carried(parts_of(call.input), "plain text")
        if self._form.via == "stdin":
            return program, words, notes
        return replace(program, argv=(*program.argv, _argument(words))), b"", notes

    def _read(self, output: bytes) -> Result:
        try:
            reply = _replies.decode(output)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Result(data=_read_answer(output))
        if not reply.ok and reply.error is not None:
            raise self._refused(reply.error)
        if not reply.ok or (reply.result is None and not reply.parts):
            return Result(data=_read_answer(output))
        return Result(data=as_object(reply.result), parts=reply.parts, notes=reply.notes)

    def _refused(self, why: str) -> UpstreamRefused:
        return UpstreamRefused(why, agent_id=self.manifest.agent_id)


def _words(arguments: dict[str, Any]) -> str:
    """The task, or else the only text among the arguments."""
    task = arguments.get("task")
    texts = [task] if task else [value for value in arguments.values() if isinstance(value, str) and value]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise BadInput("This agent takes plain words: send them as the task")
    return texts[0]


def _argument(words: bytes) -> str:
    if len(words) > ARGV_BYTES:
        raise PayloadTooLarge(ARGV_BYTES)
    text = words.decode()
    if text.startswith("-") or "\0" in text:
        raise BadInput("Words for this agent must not start with '-' (it would be an option) nor hold a zero character")
    return text


async def _feed(child: Child, words: bytes) -> None:
    try:
        child.stdin.write(words)
        await child.stdin.drain()
        child.stdin.close()
    except ConnectionError:
        pass  # it does not care for its input


async def _output(child: Child, limit: int) -> bytes | None:
    output = bytearray()
    while chunk := await child.stdout.read(_CHUNK):
        output += chunk
        if len(output) > limit:
            child.kill()
            return None
    return bytes(output)


def _read_answer(output: bytes) -> dict[str, Any]:
    """A JSON object is the result; anything else is words."""
    try:
        answer = msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    return {"answer": output.decode(errors="replace").removesuffix("\n").removesuffix("\r")}
