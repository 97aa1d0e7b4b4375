"""Runtime: an agent that is Python code in this process.

The agent is mounted by the program that started the node, or named by an import path
(`python:package.module:attribute`) and imported on the first call, in a thread. The
attribute is an `Agent`, a class or function that makes one (a function annotated
`-> Agent`), or a plain function, which becomes an agent with one capability."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from a2a_fabric.agent import Agent
from a2a_fabric.authoring.function import read_return_hint
from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit, bind_to_caller, hide_private
from a2a_fabric.core.errors import AgentOffline, BadInput, OperatorText
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.result import Result
from a2a_fabric.core.threads import worker_threads
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint

IMPORT_TIMEOUT = 60.0


class PythonEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    transport: Literal["local"] = "local"
    uri: str = ""  # python:package.module:attribute
    folder: str | None = None  # of the agent, whose modules are its own; unset: the configuration's


class PythonRuntime:
    def __init__(self, manifest: Manifest, endpoint: PythonEndpoint, mounted: object, context: RuntimeContext) -> None:
        self.manifest = manifest
        self._uri = endpoint.uri
        self._folder = None if endpoint.folder is None else context.base / endpoint.folder
        self._mounted = mounted
        self._base = context.base
        self._threads = context.threads
        self._agent: Agent | None = None
        self._load_lock = asyncio.Lock()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        agent = self._agent or await self._get_agent()
        if call.conversation_id:
            call = msgspec.structs.replace(call, conversation_id=bind_to_caller(call, call.conversation_id))
        if call.auth.mandate:
            call = msgspec.structs.replace(call, auth=hide_private(call.auth))
        token = worker_threads.set(None if self._threads is None else (self._threads, call.auth.principal_id))
        try:
            return await agent(call, emit)
        finally:
            worker_threads.reset(token)

    async def health(self) -> Status:
        await self._get_agent()
        return "online"

    async def describe(self) -> Manifest:
        agent = await self._get_agent()
        return complete_manifest(self.manifest, agent.manifest())

    async def aclose(self) -> None:
        self._agent = None

    async def _get_agent(self) -> Agent:
        async with self._load_lock:
            if self._agent is None:
                self._agent = await self._load()
            return self._agent

    async def _load(self) -> Agent:
        subject = self._uri or f"the object mounted as '{self.manifest.agent_id}'"
        try:
            async with asyncio.timeout(IMPORT_TIMEOUT):
                return await asyncio.to_thread(self._find_agent)
        except TimeoutError as exc:
            reason = f"not imported within {IMPORT_TIMEOUT:g} s"
            operator_text = OperatorText(f"{subject}: {reason}", f"The agent's code was {reason}")
            raise AgentOffline(operator_text, agent_id=self.manifest.agent_id) from exc
        except (Exception, SystemExit) as exc:  # importing runs the author's code, which may raise anything
            reason = f"{type(exc).__name__}: {exc}"[:500]
            operator_text = OperatorText(f"{subject} cannot be used: {reason}", "The agent's code cannot be loaded")
            raise AgentOffline(operator_text, agent_id=self.manifest.agent_id) from exc

    def _find_agent(self) -> Agent:
        if self._mounted is not None:
            target = self._mounted
        elif self._folder is not None:
            target = _load_from_folder(self._uri, self._folder)
        else:
            target = _import_target(self._uri, self._base)
        if inspect.isclass(target) or (inspect.isroutine(target) and _is_agent_factory(target)):
            target = target()
        return target if isinstance(target, Agent) else self._wrap_function(target)

    def _wrap_function(self, function: Any) -> Agent:
        """An agent made from one function, named after the manifest's only capability if there is one."""
        if not callable(function):
            raise TypeError(f"{type(function).__name__} is neither an Agent nor a function")
        agent = Agent(self.manifest.agent_id)
        declared = self.manifest.capabilities
        agent.capability(name=declared[0].name if len(declared) == 1 else None)(function)
        return agent


def _is_agent_factory(function: Any) -> bool:
    return_type = read_return_hint(function)
    return inspect.isclass(return_type) and issubclass(return_type, Agent)


def _import_target(uri: str, base: Path) -> Any:
    module_name, _, attribute = uri.removeprefix("python:").partition(":")
    folder = str(base.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    target: Any = importlib.import_module(module_name)
    for name in attribute.split("."):
        target = getattr(target, name)
    return target


def _load_from_folder(uri: str, folder: Path) -> Any:
    """A module of an agent's folder, under a name of its own: two agents may both have an `agent.py`."""
    module_name, _, attribute = uri.removeprefix("python:").partition(":")
    path = folder.joinpath(*module_name.split(".")).with_suffix(".py")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ImportError(f"{module_name} is outside the agent's folder")
    spec = importlib.util.spec_from_file_location(f"_fabric_agent_{abs(hash(str(path.resolve())))}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module {module_name} in the agent's folder")
    target: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = target
    spec.loader.exec_module(target)
    for name in attribute.split("."):
        target = getattr(target, name)
    return target


def build(manifest: Manifest, context: RuntimeContext) -> PythonRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = decode_endpoint(manifest, PythonEndpoint)
    mounted = context.mounted.get(manifest.agent_id)
    module, _, attribute = endpoint.uri.removeprefix("python:").partition(":")
    if mounted is None and not (module and attribute):
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a bad endpoint: uri must be python:package.module:attribute",
            agent_id=manifest.agent_id,
        )
    return PythonRuntime(manifest, endpoint, mounted, context)


plugin = RuntimePlugin(build=build)
