"""Write an agent as Python functions; serve it, or mount it in a gateway's process.

    agent = Agent("percy", description="Thinks before it speaks.")

    @agent.capability
    async def reason(task: str, depth: int = 1) -> dict: ...

    agent.run(port=8001)

Type hints become the schemas, docstrings the descriptions, yields the events. An
`Agent` is itself a handler: it takes a call, emits what happens, returns the result.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec

from a2a_fabric.authoring.http import HTTPApp
from a2a_fabric.authoring.parameters import Function, Parameters, parameters_of, return_hint_of
from a2a_fabric.authoring.running import Breathing, emitter_for, is_generator, run
from a2a_fabric.authoring.schema import result_schema_of
from a2a_fabric.authoring.serving import serve
from a2a_fabric.core.agent import Capability, Manifest, fold
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import not_taken, noted, parts_of
from a2a_fabric.core.errors import CapabilityNotFound, FabricError, OperatorText, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.listener import Listener
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result

F = TypeVar("F", bound=Function)

log = logging.getLogger(__name__)

_WHERE = "its operator finds the reason in the node's log under this trace id"


@dataclass(frozen=True)
class _Offer:
    """A capability and the function behind it."""

    capability: Capability
    function: Function
    parameters: Parameters

    async def answer(self, call: Call, emit: Emit) -> Result:
        values = self.parameters.bind(arguments_for(self.capability, call.input))
        if self.parameters.takes_call:
            values[self.parameters.takes_call] = call
        emitter = emitter_for(self.function, emit)
        if self.parameters.takes_emit:
            values[self.parameters.takes_emit] = emitter
        try:
            result = await run(self.function, values, emit)
        finally:
            emitter.close()
        if call.input.attachments and not self.parameters.takes_attachments:
            return noted(result, not_taken(parts_of(call.input), self.capability.name))
        return result


class Agent:
    """An id and the functions that make it up. `about` takes any other field of the manifest: version, tags, …"""

    def __init__(self, agent_id: str, *, description: str = "", **about: Any) -> None:
        self.agent_id = agent_id
        self._about = {"agent_id": agent_id, "description": description, **about}
        self._offers: dict[str, _Offer] = {}
        self.app = HTTPApp(self)  # ASGI: mount it anywhere, or let `run` serve it
        self.manifest()  # a wrong field is reported where the agent is written

    @overload
    def capability(self, function: F, /) -> F: ...

    @overload
    def capability(self, name: str | None = None, **about: Any) -> Callable[[F], F]: ...

    def capability(self, name: Any = None, **about: Any) -> Any:
        """Offer a function. `about` takes any other field of a capability: idempotent, max_timeout_ms, …"""

        def offer(function: F) -> F:
            self._offer(function, about if name is None else {"name": name, **about})
            return function

        if callable(name):
            self._offer(name, about)
            return name
        return offer

    def _offer(self, function: Function, about: dict[str, Any]) -> None:
        parameters = parameters_of(function)
        found: dict[str, Any] = {
            "name": getattr(function, "__name__", type(function).__name__),
            "description": (inspect.getdoc(function) or "").partition("\n")[0],
            "input_schema": parameters.schema,
            "output_schema": result_schema_of(return_hint_of(function)),
            "streaming": is_generator(function) or parameters.takes_emit is not None,
        }
        capability = _checked({**found, **about}, Capability)
        if fold(capability.name) in self._offers:
            raise ValueError(f"Agent '{self.agent_id}' already offers '{capability.name}'")
        self._offers[fold(capability.name)] = _Offer(capability, function, parameters)

    def find(self, name: str) -> Capability | None:
        offer = self._offers.get(fold(name))
        return offer.capability if offer else None

    def manifest(self, endpoint: dict[str, Any] | None = None) -> Manifest:
        """What this agent publishes about itself, as found at `endpoint`."""
        capabilities = tuple(offer.capability for offer in self._offers.values())
        here = {"transport": "local", "uri": f"python:{self.agent_id}"}
        manifest = _checked({**self._about, "endpoint": endpoint or here}, Manifest)
        return msgspec.structs.replace(manifest, capabilities=capabilities)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """Answer a call.

        A ValueError or TypeError of the author's code is the agent's refusal, any other
        exception its failure; what `emit` raises is the caller's.
        """
        offer = self._offers.get(fold(call.target.capability))
        if offer is None:
            names = [offer.capability.name for offer in self._offers.values()]
            raise CapabilityNotFound(self.agent_id, call.target.capability, names)
        listener = Breathing(emit)
        with _refusals(self.agent_id, offer.capability.name, listener):
            return await offer.answer(call, listener)

    def run(
        self, *, port: int = 8001, host: str = "127.0.0.1", stdio: bool = False, argv: Sequence[str] | None = None
    ) -> None:
        """Serve until SIGINT or SIGTERM. The command line's --port, --host and --stdio win; `argv=[]` ignores it."""
        serve(self, port=port, host=host, stdio=stdio, argv=argv)


@contextmanager
def _refusals(agent_id: str, capability: str, listener: Listener) -> Iterator[None]:
    """The outermost edge of the author's code: callers get one sentence, the log gets the traceback."""
    try:
        yield
    except FabricError:
        raise
    except (ValueError, TypeError) as exc:
        if exc is listener.failure:
            raise
        log.info("%s.%s refused: %s", agent_id, capability, exc)
        told = _withheld(str(exc) or type(exc).__name__, "The agent refused")
        raise UpstreamRefused(told, agent_id=agent_id) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UpstreamFailed("The agent gave up its own work", agent_id=agent_id) from exc
    except (Exception, SystemExit) as exc:
        if exc is listener.failure:
            raise
        log.exception("%s.%s failed", agent_id, capability)
        raise UpstreamFailed(_withheld(f"{type(exc).__name__}: {exc}", "The agent failed"), agent_id=agent_id) from exc


def _withheld(words: str, public: str) -> OperatorText:
    """The words of an exception may hold anything. What callers are to read is raised as one of our errors."""
    return OperatorText(words[:500], f"{public}; {_WHERE}")


T = TypeVar("T")


def _checked(fields: dict[str, Any], kind: type[T]) -> T:
    """A struct from what the author wrote, Python tuples and all; raises ValueError saying what is wrong."""
    return msgspec.convert(msgspec.to_builtins(fields), kind)
