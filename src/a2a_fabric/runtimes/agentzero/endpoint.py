"""What all ways to Agent Zero share: its endpoint in a manifest, API paths that differ between versions, and calls
as plain text."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, add_notes, make_propagation_headers
from a2a_fabric.core.result import Part, Result
from a2a_fabric.outbound.port import HTTPReply
from a2a_fabric.runtimes.prompt import build_format_instruction, build_prompt, find_json_object
from a2a_fabric.runtimes.upstream import JSONAPIClient, decode_object_or_empty


class RemoteFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Python function of Agent Zero that may be called; `name` is its capability."""

    module: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")]
    function: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*\Z")]
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    description: str = ""
    input_schema: dict[str, Any] | None = None

    @property
    def public_name(self) -> str:
        return self.name or self.function


class AgentZeroEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    protocol: Literal["a2a", "api", "rfc"] = "a2a"
    token: str | None = None  # the token of its settings page, for `a2a` and `api`
    token_in_path: bool = False  # `a2a`: for versions that do not read the token from a header
    project: str | None = None
    headers: dict[str, str] = {}
    inline_files: bool = False  # `a2a`: send files as bytes; Agent Zero itself reads only links
    profile: str | None = None  # `api`: the agent profile that answers
    lifetime_hours: Annotated[float, Meta(gt=0)] | None = None  # `api`: how long it keeps a conversation
    password: str | None = None  # `rfc`
    functions: tuple[RemoteFunction, ...] = ()  # `rfc`: the functions that may be called

    @property
    def request_headers(self) -> dict[str, str]:
        """The headers of every request."""
        if not self.token or self.protocol == "rfc":
            return self.headers
        if self.protocol == "api":
            return {"x-api-key": self.token, **self.headers}
        if self.token_in_path:
            return self.headers
        return {"authorization": f"Bearer {self.token}", "x-api-key": self.token, **self.headers}

    @property
    def a2a_url(self) -> str:
        """The base URL of FastA2A; a `uri` with a path is used as it is."""
        parts = urlsplit(self.uri)
        path = parts.path.rstrip("/") or "/a2a"
        if self.token and self.token_in_path:
            path += f"/t-{quote(self.token, safe='')}"
            path += f"/p-{quote(self.project, safe='')}" if self.project else ""
        return urlunsplit((parts.scheme, parts.netloc, path, "", ""))

    @property
    def message_project(self) -> str | None:
        """The project to name in messages; None if the URL names it."""
        return None if self.token and self.token_in_path else self.project


_MISSING_STATUSES = (404, 405)  # versions that serve pages at any path answer 405


class VersionedPath:
    """An API method whose path differs between versions; the path that worked is remembered."""

    def __init__(self, api: JSONAPIClient, name: str) -> None:
        self._api = api
        self._path, self._other_path = f"/api/{name}", f"/{name}"

    async def post(self, body: dict[str, Any], call: Call) -> HTTPReply:
        """The reply, whatever its status. A request to a missing path did not run, so it may be sent again."""
        timeout, headers = call.target.timeout_ms / 1000, make_propagation_headers(call)
        reply = await self._api.post(self._path, body, timeout=timeout, headers=headers)
        if reply.status not in _MISSING_STATUSES or "error" in decode_object_or_empty(reply.body):
            return reply
        second_reply = await self._api.post(self._other_path, body, timeout=timeout, headers=headers)
        if second_reply.status not in _MISSING_STATUSES:
            self._path, self._other_path = self._other_path, self._path
        return second_reply


def prompt_from_call(manifest: Manifest, call: Call) -> str:
    """The call without its attachments."""
    format_text = build_format_instruction(manifest.find_capability(call.target.capability))
    return "\n\n".join(filter(None, (build_prompt(manifest, call), format_text)))


def text_from_part(part: Part) -> str | None:
    """None for a part that holds bytes, which text cannot carry."""
    if part.blob is not None:
        return None
    if part.text is None and part.url is None:
        return json_block(part.data if part.kind == "json" else {part.kind: part.data})
    content, separator = (part.text, "\n") if part.text is not None else (part.url or "", " ")
    return f"{part.name}:{separator}{content}" if part.name else content


def json_block(value: Any) -> str:
    return f"```json\n{msgspec.json.encode(value).decode()}\n```"


def extract_object(result: Result, manifest: Manifest, call: Call) -> Result:
    """If the capability declares an object and the answer is text, the object in that text."""
    answer = result.data.get("answer")
    if not isinstance(answer, str) or len(result.data) > 1:
        return result
    value, notes = find_json_object(answer, manifest.find_capability(call.target.capability))
    return add_notes(result if value is None else Result(data=value, parts=result.parts), notes)
