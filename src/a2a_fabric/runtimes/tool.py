"""Runtime: a built-in tool of this process."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.agent import Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, Emit, add_notes, bind_arguments, describe_unbound_attachments
from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound, FabricError
from a2a_fabric.core.ports import Runtime, RuntimePlugin
from a2a_fabric.core.result import Result
from a2a_fabric.core.threads import worker_threads
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.tools.catalog import TOOLS_BY_ID
from a2a_fabric.tools.spec import ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import tool_error


class ToolRuntime:
    def __init__(self, manifest: Manifest, toolbox: Toolbox) -> None:
        tool = TOOLS_BY_ID.get(manifest.agent_id)
        if tool is None:
            raise AgentNotFound(manifest.agent_id, TOOLS_BY_ID)
        self.manifest = manifest
        self.tool = tool
        self.toolbox = toolbox  # shared by all tools; belongs to the node

    async def __call__(self, call: Call, emit: Emit) -> Result:
        threads = self.toolbox.threads
        token = worker_threads.set(None if threads is None else (threads, call.auth.principal_id))
        try:
            self._check_capability(call.target.capability)
            answer = await self.tool.handler(self._convert_arguments(call), self.toolbox)
        except FabricError as exc:
            exc.details.setdefault("tool_id", self.tool.tool_id)
            raise
        finally:
            worker_threads.reset(token)
        return add_notes(Result(data=dict(answer)), describe_unbound_attachments(call.input, {}, self.tool.tool_id))

    def _check_capability(self, capability: str) -> None:
        if not self.tool.has_capability(normalize_name(capability)):
            raise CapabilityNotFound(self.tool.tool_id, capability, [self.tool.capability, *self.tool.aliases])
        reason = self.tool.listing.find_disabled_reason(self.toolbox.settings)
        if reason is not None:
            raise tool_error("ACCESS_DENIED", f"The tool {self.tool.tool_id} is switched off on this node: {reason}")

    def _convert_arguments(self, call: Call) -> ToolArguments:
        capability = self.manifest.find_capability(self.tool.capability)
        try:
            return msgspec.convert(bind_arguments(capability, call.input), self.tool.arguments)
        except msgspec.ValidationError as exc:
            raise BadInput(f"The arguments of {self.tool.tool_id} are wrong: {exc}") from exc

    async def health(self) -> Status:
        return "online"

    async def describe(self) -> Manifest:
        return self.manifest

    async def aclose(self) -> None:
        """A tool has no resources to release."""


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises BadInput on a node without built-in tools."""
    if context.toolbox is None:
        raise BadInput("This node has no built-in tools.", agent_id=manifest.agent_id)
    return ToolRuntime(manifest, context.toolbox)


plugin = RuntimePlugin(build=build)
