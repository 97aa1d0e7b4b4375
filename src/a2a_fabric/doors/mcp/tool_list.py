"""Which tools `tools/list` shows: those of agents up to a limit, and a few of the gateway's own; in pages, if the list
is very long.

Beyond the limit, what the operator pinned and what this caller used last stay listed, then the others in their order
until the list is full. Hidden tools are found with `fabric_tool_list` and can be called by name. The same sentence
tells of them in the log, in the server's instructions, and in the output of commands."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from a2a_fabric.core.view import View
from a2a_fabric.doors.mcp.tool_names import ToolKey

_log = logging.getLogger(__name__)
_LOG_DELAY, _LOG_INTERVAL = 1.0, 60.0  # seconds
MAX_RECENT_TOOLS = 32  # of one caller
_MAX_CALLERS = 10_000

# The gateway's own tools in a short list, each with the arguments that the list describes; None: all but `trace`. The
# tools accept their other arguments, too.
SEARCH_TOOLS: dict[str, tuple[str, ...] | None] = {
    "fabric.tool.list": ("query", "category", "limit"),
    "fabric.tool.describe": None,
    "fabric.tool.call": ("tool_id", "parameters", "timeout_ms"),
}
CALL_TOOLS: dict[str, tuple[str, ...] | None] = {
    "fabric.call": ("agent_id", "capability", "task", "context", "continuation", "answers"),
}
JOB_TOOLS: dict[str, tuple[str, ...] | None] = {
    "fabric.job.status": None,
    "fabric.job.result": None,
    "fabric.job.cancel": None,
    "fabric.job.answer": None,
}


class ToolListSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the door that decide what is listed."""

    max_listed: Annotated[
        int,
        Meta(
            ge=0,
            description="How many tools of agents are listed at most. Beyond that, `pinned` tools and those that the "
            "caller used last stay listed; clients find the rest with fabric_tool_list and call them by name.",
        ),
    ] = 250
    pinned: Annotated[
        tuple[str, ...],
        Meta(description="Tools that stay listed if there are more than `max_listed`, such as `github.get_*`."),
    ] = ()
    gateway_tools: Annotated[
        Literal["none", "minimal", "all"],
        Meta(
            description="Which of the gateway's own tools are listed. minimal: those that find and call tools, and "
            "those for jobs if a listed tool can become one. Clients can call all of them by name."
        ),
    ] = "minimal"
    disclosure: Annotated[
        Literal["list", "search"],
        Meta(
            description="search: list only the tools that search, describe and call tools, for the smallest context. "
            "list: list the tools of agents."
        ),
    ] = "list"
    searching_clients: Annotated[
        tuple[str, ...],
        Meta(
            description="Clients that search in long lists themselves, by the name that they give themselves. They are "
            "shown all tools, as is a client that sends the header `X-Fabric-Tools: all`."
        ),
    ] = ("claude-code",)
    builtin_tools: Annotated[
        bool,
        Meta(
            description="List the built-in tools too. If they are not listed, clients call them with fabric_tool_call."
        ),
    ] = False

    @property
    def pinned_view(self) -> View:
        return View(name="pinned", tools=self.pinned)

    def describe_hidden(self, total: int) -> str | None:
        """A sentence about the tools that are not listed; None if all are, or if the operator wants none listed."""
        hidden = total - self.max_listed
        if hidden <= 0 or self.disclosure == "search":
            return None
        return (
            f"{hidden} of {total} tools are not listed to MCP clients, because max_listed of the door mcp is "
            f"{self.max_listed}. Clients find them with fabric_tool_list and can call them by name. To list more, "
            "raise max_listed; to keep certain tools listed, name them in pinned"
        )

    def make_instructions(self, hidden: str | None, view_names: Sequence[str], tool_count: int) -> str:
        """How the server introduces itself to a client."""
        sentences = ["A gateway to agents. Each capability of each agent is a tool of its own."]
        if self.disclosure == "search":
            sentences.append(
                "The tools are not listed: find them with fabric_tool_list and a query, read one with "
                "fabric_tool_describe, and run it with fabric_tool_call."
            )
        elif self.gateway_tools != "none":
            sentences.append(
                "fabric_tool_list with a query finds a tool that is not listed; fabric_tool_call and fabric_call run "
                "it."
            )
        if view_names and not tool_count:
            sentences.append(f"The view {' and '.join(view_names)} includes no tool of an agent.")
        return " ".join((*sentences, f"{hidden}." if hidden else "")).rstrip()


MAX_PAGE_BYTES = 2 << 20
_CURSOR = re.compile(r"[0-9]{1,9}\.[0-9a-f]{16}")
_ENTRY_BYTES = 8  # of a tool in a list: its encoded form is shared


class ToolPage(NamedTuple):
    tools: Sequence[bytes]
    next_cursor: str | None


class ToolList:
    """The tools that a caller sees, each as it is encoded. Nearly all lists are one page; its encoded form is kept.

    A cursor is the number of tools before the page and a hash of the last of them, so that a page continues behind that
    tool also if others came or went.
    """

    __slots__ = ("_encoded", "tools")

    def __init__(self, tools: Iterable[bytes]) -> None:
        self.tools = tuple(tools)
        self._encoded: bytes | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return _ENTRY_BYTES * len(self.tools) + len(self._encoded or b"")

    def find_page(self, cursor: str | None, max_tools: int = sys.maxsize) -> ToolPage:
        """`cursor` has the form of one."""
        start = 0 if cursor is None else self._find_start(cursor)
        sizes = list(accumulate(map(len, islice(self.tools, start, None))))
        end = start + min(max(1, bisect_right(sizes, MAX_PAGE_BYTES)), max_tools)
        is_last = end >= len(self.tools)
        return ToolPage(self.tools[start:end], None if is_last else f"{end}.{_hash_tool(self.tools[end - 1])}")

    def encode_page(self, cursor: str | None) -> bytes:
        """The members of a result: the tools, and the cursor of the next page if there is one."""
        if cursor is None and self._encoded is not None:
            return self._encoded
        page = self.find_page(cursor)
        rest = b"" if page.next_cursor is None else b',"nextCursor":"%b"' % page.next_cursor.encode()
        encoded = b'"tools":[%b]%b' % (b",".join(page.tools), rest)
        if cursor is None:
            self._encoded = encoded
        return encoded

    def _find_start(self, cursor: str) -> int:
        number, _, last = cursor.partition(".")
        start = min(int(number), len(self.tools))
        if start and _hash_tool(self.tools[start - 1]) == last:
            return start
        found = (at for at, tool in enumerate(self.tools, 1) if _hash_tool(tool) == last)
        return next(found, start)


def is_cursor(text: str) -> bool:
    """Whether the text has the form of a cursor of a list of tools."""
    return _CURSOR.fullmatch(text) is not None


def _hash_tool(tool: bytes) -> str:
    return hashlib.sha256(tool).hexdigest()[:16]


class RecentTools:
    """What each caller used last of the tools that might not be listed; in memory, of a bounded number of callers."""

    def __init__(self) -> None:
        self._by_caller: OrderedDict[str | None, tuple[ToolKey, ...]] = OrderedDict()

    def note(self, caller: str | None, key: ToolKey) -> None:
        recent = self._by_caller.get(caller, ())
        if recent[:1] == (key,):
            return
        others = [each for each in recent if each != key]
        self._by_caller[caller] = (key, *others[: MAX_RECENT_TOOLS - 1])
        self._by_caller.move_to_end(caller)
        if len(self._by_caller) > _MAX_CALLERS:
            self._by_caller.popitem(last=False)

    def get(self, caller: str | None) -> tuple[ToolKey, ...]:
        return self._by_caller.get(caller, ())


class HiddenToolsLog:
    """Logs how many tools are hidden when that has changed: after a moment, and at most once a minute."""

    def __init__(self, describe_hidden: Callable[[], str | None]) -> None:
        self._describe_hidden = describe_hidden
        self._logged: str | None = None
        self._logged_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def on_catalog_change(self, catalog: object) -> None:
        if self._timer is None and self._describe_hidden() != self._logged:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + _LOG_DELAY, self._logged_at + _LOG_INTERVAL), self._log)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _log(self) -> None:
        self._timer = None
        hidden = self._describe_hidden()
        if hidden != self._logged:
            self._logged, self._logged_at = hidden, asyncio.get_running_loop().time()
            _log.warning("%s", hidden or "All tools are listed to MCP clients again.")


def shorten_schema(schema: dict[str, Any], keep: tuple[str, ...] | None) -> dict[str, Any]:
    """The schema with these properties only; None: without `trace`, which clients send in `_meta`."""
    properties = {
        name: value
        for name, value in schema.get("properties", {}).items()
        if (name != "trace" if keep is None else name in keep)
    }
    shortened = {key: value for key, value in schema.items() if key not in ("properties", "$defs", "title")}
    shortened["properties"] = properties
    text = msgspec.json.encode(properties).decode()
    definitions = schema.get("$defs", {})
    needed: dict[str, Any] = {}
    while missing := [name for name in definitions if name not in needed and f'"#/$defs/{name}"' in text]:
        needed.update((name, definitions[name]) for name in missing)
        text = msgspec.json.encode([properties, needed]).decode()
    return {**shortened, "$defs": needed} if needed else shortened
