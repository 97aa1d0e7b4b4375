"""The endpoint of an `http` agent, as a manifest declares it, and the expressions in it.

An expression selects a value in an API's JSON: a JSON pointer (`/choices/0/text`) or JMESPath
(`choices[0].text`). A pointer is empty or begins with a slash, which JMESPath never does."""

from __future__ import annotations

from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput, UpstreamFailed
from a2a_fabric.core.ports import load_module
from a2a_fabric.runtimes.context import bad_endpoint, decode_endpoint

_MAX_LENGTH = 2000


class Expression(Protocol):
    def find(self, value: Any) -> Any:
        """Raises UpstreamFailed if there is no such value."""
        ...

    def find_or_none(self, value: Any) -> Any:
        """None if there is no such value."""
        ...


class JSONPointer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._steps = [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]

    def find(self, value: Any) -> Any:
        for step in self._steps:
            if isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                raise _no_match(self._text)
        return value

    def find_or_none(self, value: Any) -> Any:
        try:
            return self.find(value)
        except UpstreamFailed:
            return None


class JMESPath:
    """Loaded by the first expression. Its errors are ValueErrors."""

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._compiled = load_module("jmespath").compile(text)
        except (ValueError, RecursionError) as exc:
            first_line, _, _ = str(exc).partition("\n")
            raise BadInput(f"'{text[:100]}' is neither a JSON pointer nor JMESPath: {first_line}"[:300]) from exc

    def find(self, value: Any) -> Any:
        result = self.find_or_none(value)
        if result is None:
            raise _no_match(self._text)
        return result

    def find_or_none(self, value: Any) -> Any:
        try:
            return self._compiled.search(value)
        except (ValueError, RecursionError) as exc:
            raise UpstreamFailed(f"The agent's answer does not suit '{self._text}': {exc}"[:300]) from exc


def _no_match(text: str) -> UpstreamFailed:
    return UpstreamFailed(f"The agent's answer has nothing at '{text}'")


class ExpressionParser:
    """Parses the expressions in a manifest.

    A JMESPath expression can expand a small answer without bounds, so it is only allowed in
    the operator's own manifests; agents that register themselves use pointers.
    """

    def __init__(self, *, pointers_only: bool = False) -> None:
        self._pointers_only = pointers_only

    def parse(self, text: str | None) -> Expression | None:
        """Raises BadInput."""
        if text is None:
            return None
        if len(text) > _MAX_LENGTH:
            raise BadInput(f"An expression is at most {_MAX_LENGTH} characters long")
        if not text or text.startswith("/"):
            return JSONPointer(text)
        if self._pointers_only:
            raise BadInput(f"'{text[:100]}' is not a JSON pointer: agents that register themselves may use no other")
        return JMESPath(text)


Milliseconds = Annotated[int, Meta(ge=10)]
_NO_BODY = ("GET", "HEAD")


class PollSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to poll an API that answers later. All settings but the pauses are expressions over its JSON."""

    until: str | None = None  # true when the work is done; unset: the HTTP status decides, 202 means not yet
    failed: str | None = None  # true or a text when the work has failed
    result: str | None = None  # where the result is in the last reply
    location: str | None = None  # where the first reply has the address to poll; unset: in its headers
    progress: str | None = None  # percent done
    every_ms: Milliseconds = 500  # grows to `longest_ms`, unless the API says when to poll again
    longest_ms: Milliseconds = 10_000
    cancel: Annotated[str, Meta(pattern=r"^(DELETE|POST|PUT)( \S+)?$")] | None = None  # `DELETE`, `POST cancel`


class HTTPEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's address, and how requests and replies are made."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)] | None = None
    transport: str = "http"
    headers: dict[str, str] = {}
    health: str | None = None  # path or URL of a health check; unset: the agent's own address
    # for APIs that do not follow the plain contract
    method: str = "POST"
    request: Any = None  # a template of the body
    query: dict[str, Any] = {}  # templates of the query parameters
    reply: str | None = None  # where the answer is in the reply
    token: str | None = None  # where the text is in one event of a stream
    error: str | None = None  # where the reason is in an error reply
    poll: PollSettings | None = None
    openapi: str | bool = False  # address or file of the document; true: discovered from the uri
    include: list[str] = []  # operations by id, tag or `METHOD /path`, as shell patterns
    exclude: list[str] = []

    @property
    def has_body(self) -> bool:
        return self.method.upper() not in _NO_BODY

    @property
    def is_plain(self) -> bool:
        """Whether the agent follows the plain contract, which needs no description."""
        api_fields = (self.request, self.query, self.reply, self.token, self.error, self.poll, self.openapi)
        return self.has_body and not any(api_fields) and "${" not in (self.uri or "")


def read_endpoint(manifest: Manifest) -> HTTPEndpoint:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, HTTPEndpoint)
    addresses = [each for each in (endpoint.uri, endpoint.openapi) if isinstance(each, str)]
    if endpoint.uri is None and not isinstance(endpoint.openapi, str):
        raise bad_endpoint(manifest.agent_id, "it needs a `uri`, or an `openapi` document")
    if any(is_http_url(each) and "@" in urlsplit(each).netloc for each in addresses):
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put credentials into `headers`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    if not endpoint.openapi and (endpoint.include or endpoint.exclude):
        raise bad_endpoint(
            manifest.agent_id, "`include` and `exclude` choose from an `openapi` document, and there is none"
        )
    return endpoint


def is_http_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
