"""The `tools:` table of fabric.yaml. Tools that could do harm are off until they are switched on here."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Size = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: Annotated[bool, Meta(description="Whether this node offers the built-in tools at all.")] = True
    disabled: Annotated[
        tuple[str, ...], Meta(description="Tools (`web.http_request`) or whole categories (`web`) to switch off.")
    ] = ()
    threads: Annotated[int, Meta(ge=1, le=64, description="Threads for tools whose work takes long.")] = 4
    processes: Annotated[
        int, Meta(ge=1, le=64, description="Processes for tools that compute for long; they start when needed.")
    ] = 2
    io_root: Annotated[
        str, Meta(description="The only folder that io.* and system.execute see; relative to the configuration file.")
    ] = "files"
    io_write: Annotated[bool, Meta(description="Whether io.write_file may write.")] = False
    io_max_bytes: Annotated[Size, Meta(description="The most that io.* reads from or writes to one file.")] = 5_000_000
    execute: Annotated[
        bool, Meta(description="Whether system.execute may run programs, with all rights of this process.")
    ] = False
    execute_env: Annotated[
        tuple[str, ...], Meta(description="Environment variables that programs get, and callers may set.")
    ] = ("PATH", "LANG", "LC_ALL", "TZ")
    env: Annotated[tuple[str, ...], Meta(description="Environment variables that system.env may show.")] = ()
    web_allow: Annotated[
        tuple[str, ...], Meta(description="Hosts and CIDR ranges that web.* may reach although they are private.")
    ] = ()
    web_max_bytes: Annotated[Size, Meta(description="The most that web.* reads of one reply.")] = 2_000_000
    brave_api_key: Annotated[str | None, Meta(description="Key of the Brave Search API, as `env:NAME`.")] = None
    brave_url: Annotated[str, Meta(description="Address of the Brave Search API.")] = (
        "https://api.search.brave.com/res/v1/web/search"
    )
