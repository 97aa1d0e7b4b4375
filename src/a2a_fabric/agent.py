"""Write an agent as Python functions; serve it, or mount it in a gateway's process.

    agent = Agent("percy", description="Thinks before it speaks.")

    @agent.capability
    async def reason(task: str, depth: int = 1) -> dict: ...

    agent.run(port=8001)

Type hints become the schemas, docstrings the descriptions, yields the events. An
`Agent` is itself a handler: it takes a call, emits events, returns the result."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import msgspec

from a2a_fabric.authoring.function import (
    Emitter,
    Function,
    Parameters,
    ThreadEmitter,
    YieldingEmitter,
    is_async,
    is_generator,
    read_parameters,
    read_return_hint,
    result_schema_from_hint,
    run_function,
)
from a2a_fabric.authoring.http import HTTPApp
from a2a_fabric.authoring.server import RunningAgent, serve, serve_in_loop
from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import (
    Call,
    CallerEmitter,
    Emit,
    add_notes,
    bind_arguments,
    describe_rejected_parts,
    parts_from_input,
)
from a2a_fabric.core.errors import CapabilityNotFound, FabricError, OperatorText, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.forwarding import IdentityVerifier
from a2a_fabric.core.result import Result

F = TypeVar("F", bound=Function)

log = logging.getLogger(__name__)

_LOG_HINT = "its operator finds the reason in the node's log under this trace id"


class _CapabilityFunction(msgspec.Struct, frozen=True):
    """A capability and the function behind it."""

    capability: Capability
    function: Function
    parameters: Parameters
    is_async: bool

    async def answer(self, call: Call, emit: Emit) -> Result:
        arguments = call.input.arguments  # the node has bound them already, unless it serves this agent elsewhere
        if arguments is msgspec.UNSET:
            arguments = bind_arguments(self.capability, call.input)
        values = self.parameters.bind(arguments)
        if self.parameters.takes_call:
            values[self.parameters.takes_call] = call
        emitter = Emitter(emit) if self.is_async else ThreadEmitter(emit)
        if self.parameters.takes_emit:
            values[self.parameters.takes_emit] = emitter
        try:
            result = await run_function(self.function, values, emit, is_async=self.is_async)
        finally:
            emitter.close()
        if call.input.attachments and not self.parameters.takes_attachments:
            return add_notes(result, describe_rejected_parts(parts_from_input(call.input), self.capability.name))
        return result


class Agent:
    """An id and the functions that make it up. `about` takes any other field of the manifest: version, tags, …

    With `verify`, such as `a2a_fabric.identity.NodeIdentityVerifier`, the agent answers only calls that a trusted node
    has signed. A node in the same process may call it without.
    """

    def __init__(
        self, agent_id: str, *, description: str = "", verify: IdentityVerifier | None = None, **about: Any
    ) -> None:
        self.agent_id = agent_id
        self.verifier = verify
        self._about = {"agent_id": agent_id, "description": description, **about}
        self._functions: dict[str, _CapabilityFunction] = {}
        self.app = HTTPApp(self)  # ASGI: mount it anywhere, or let `run` serve it
        self.manifest()  # a wrong field is reported where the agent is written

    @overload
    def capability(self, function: F, /) -> F: ...

    @overload
    def capability(self, name: str | None = None, **about: Any) -> Callable[[F], F]: ...

    def capability(self, name: Any = None, **about: Any) -> Any:
        """Offer a function. `about` takes any other field of a capability: idempotent, max_timeout_ms, …"""

        def decorate(function: F) -> F:
            self._add_function(function, about if name is None else {"name": name, **about})
            return function

        if callable(name):
            self._add_function(name, about)
            return name
        return decorate

    def _add_function(self, function: Function, about: dict[str, Any]) -> None:
        parameters = read_parameters(function)
        defaults: dict[str, Any] = {
            "name": getattr(function, "__name__", type(function).__name__),
            "description": (inspect.getdoc(function) or "").partition("\n")[0],
            "input_schema": parameters.schema,
            "output_schema": result_schema_from_hint(read_return_hint(function)),
            "streaming": is_generator(function) or parameters.takes_emit is not None,
        }
        capability = _convert({**defaults, **about}, Capability)
        if normalize_name(capability.name) in self._functions:
            raise ValueError(f"Agent '{self.agent_id}' already offers '{capability.name}'")
        self._functions[normalize_name(capability.name)] = _CapabilityFunction(
            capability, function, parameters, is_async(function)
        )

    def find(self, name: str) -> Capability | None:
        entry = self._functions.get(normalize_name(name))
        return entry.capability if entry else None

    def manifest(self, endpoint: dict[str, Any] | None = None) -> Manifest:
        """What this agent publishes about itself, as found at `endpoint`."""
        capabilities = tuple(entry.capability for entry in self._functions.values())
        local_endpoint = {"transport": "local", "uri": f"python:{self.agent_id}"}
        manifest = _convert({**self._about, "endpoint": endpoint or local_endpoint}, Manifest)
        return msgspec.structs.replace(manifest, capabilities=capabilities)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """Answer a call.

        A ValueError or TypeError of the author's code is the agent's refusal, any other
        exception its failure; what `emit` raises is the caller's.
        """
        name = call.target.capability
        entry = self._functions.get(name) or self._functions.get(normalize_name(name))
        if entry is None:
            names = [entry.capability.name for entry in self._functions.values()]
            raise CapabilityNotFound(self.agent_id, call.target.capability, names)
        listener = YieldingEmitter(emit)
        with _translate_exceptions(self.agent_id, entry.capability.name, listener):
            return await entry.answer(call, listener)

    def run(
        self, *, port: int = 8001, host: str = "127.0.0.1", stdio: bool = False, argv: Sequence[str] | None = None
    ) -> None:
        """Serve until SIGINT or SIGTERM. The command line's --port, --host and --stdio win; `argv=[]` ignores it."""
        serve(self, port=port, host=host, stdio=stdio, argv=argv)

    async def serve(self, *, port: int = 8001, host: str = "127.0.0.1") -> None:
        """Serve in the running event loop until this is cancelled. Raises OSError if the port is taken."""
        await serve_in_loop(self, port=port, host=host)

    def start(self, *, port: int = 8001, host: str = "127.0.0.1") -> RunningAgent:
        """Serve in a thread and return at once, for notebooks and tests. Raises OSError if the port is taken."""
        return RunningAgent(self, port=port, host=host)


@contextmanager
def _translate_exceptions(agent_id: str, capability: str, listener: CallerEmitter) -> Iterator[None]:
    """The outermost edge of the author's code: callers get one sentence, the log gets the traceback."""
    try:
        yield
    except FabricError:
        raise
    except (ValueError, TypeError) as exc:
        if exc is listener.failure:
            raise
        log.info("%s.%s refused: %s", agent_id, capability, exc)
        operator_text = _hide_details(str(exc) or type(exc).__name__, "The agent refused")
        raise UpstreamRefused(operator_text, agent_id=agent_id) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UpstreamFailed("The agent gave up its own work", agent_id=agent_id) from exc
    except (Exception, SystemExit) as exc:
        if exc is listener.failure:
            raise
        log.exception("%s.%s failed", agent_id, capability)
        raise UpstreamFailed(
            _hide_details(f"{type(exc).__name__}: {exc}", "The agent failed"), agent_id=agent_id
        ) from exc


def _hide_details(text: str, public: str) -> OperatorText:
    """The words of an exception may hold anything. What callers are to read is raised as one of our errors."""
    return OperatorText(text[:500], f"{public}; {_LOG_HINT}")


T = TypeVar("T")


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    """A struct from what the author wrote, Python tuples and all; raises ValueError saying what is wrong."""
    return msgspec.convert(msgspec.to_builtins(fields), kind)
