"""All built-in tools. Importing this imports each of them; what they say about themselves is in `listing`."""

from __future__ import annotations

from collections.abc import Mapping

from a2a_fabric.tools import data, docs, encode, io, math, system, text, web
from a2a_fabric.tools.spec import BuiltinTool

ALL_TOOLS: tuple[BuiltinTool, ...] = (
    *io.TOOLS, *web.TOOLS, *math.TOOLS, *text.TOOLS, *system.TOOLS, *data.TOOLS, *encode.TOOLS, *docs.TOOLS,
)  # fmt: skip
TOOLS_BY_ID: Mapping[str, BuiltinTool] = {tool.tool_id: tool for tool in ALL_TOOLS}
