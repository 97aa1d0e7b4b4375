"""Calls a built-in tool the way the gateway does: through its runtime, with an envelope; every answer is checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from a2a_fabric.core.call import Call, Input, Principal, Target, ignore_event
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.runtimes.tool import ToolRuntime
from a2a_fabric.tools.catalog import TOOLS_BY_ID
from a2a_fabric.tools.listing import build_manifest
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import Toolbox


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Bench:
    def __init__(self, folder: Path, web: HTTPClient, settings: ToolSettings, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.settings = settings
        self.toolbox = Toolbox(settings, folder, web, environ)

    async def __call__(self, tool_id: str, *, task: str = "", capability: str | None = None, **context: Any) -> Any:
        tool = TOOLS_BY_ID[tool_id]
        runtime = ToolRuntime(build_manifest(tool.listing, self.settings), self.toolbox)
        call = Call(
            trace=new_trace(),
            auth=Principal(),
            target=Target(agent_id=tool_id, capability=capability or tool.capability),
            input=Input(task=task, context=context),
        )
        result = await runtime(call, ignore_event)
        data = msgspec.json.decode(msgspec.json.encode(result.data))
        jsonschema_rs.validate(tool.listing.output_schema, data)
        return data

    async def fails(self, tool_id: str, code: str, tool_code: str, **context: Any) -> FabricError:
        """Expect a failure with this code of the node and this one of the tool."""
        with pytest.raises(FabricError) as caught:
            await self(tool_id, **context)
        assert (caught.value.code, caught.value.details.get("tool_error")) == (code, tool_code), caught.value.message
        assert caught.value.details["tool_id"] == tool_id
        return caught.value


@asynccontextmanager
async def bench(
    folder: Path, *, guard: Guard | None = None, environ: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    web = OutboundClient(guard)
    try:
        yield Bench(folder, web, ToolSettings(**{"io_root": ".", **settings}), environ or {})
    finally:
        await web.aclose()
