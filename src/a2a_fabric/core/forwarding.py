"""Identities that a node signs for the requests that it forwards: where they stand, and who signs and checks them.

HTTP requests and gRPC calls carry the identity under `IDENTITY_HEADER`, messages of MCP, A2A and the Agent Client
Protocol in their metadata under `IDENTITY_META_KEY`, requests to programs in the field `identity`; a program that ends
with its call has it in its environment. `identity.forwarded` says what is in one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from a2a_fabric.core.call import Call, Emit, Handler
from a2a_fabric.core.result import Result

IDENTITY_HEADER = "x-fabric-identity"
IDENTITY_META_KEY = "a2a-fabric/identity"
IDENTITY_VARIABLE = "FABRIC_IDENTITY"

# The call for which requests to an agent are sent; None for requests of the node itself, such as health checks. It is
# set only for agents whose requests are signed.
current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


class CallSigner(Protocol):
    """Signs what is sent to one agent. `capability` is its name at the agent, if it has another one here."""

    def sign_request(self, body: bytes) -> str:
        """An identity for an HTTP request with this body, on behalf of the current call or of the node itself."""
        ...

    def sign_content(self, call: Call, content: Any, capability: str | None = None) -> str:
        """An identity for a message: `content` is the part of it that is signed. Raises BadInput if it cannot be."""
        ...


class IdentityVerifier(Protocol):
    """Checks an identity where it arrives. `content` is the body of a request, or the signed part of a message."""

    def verify(self, token: str, content: Any, *, capability: str | None = None) -> Any:
        """Raises AuthInvalid or AuthExpired."""
        ...


def sign_metadata(signer: CallSigner | None, call: Call, content: Any, capability: str | None = None) -> dict[str, str]:
    """The entry for the metadata of a message, if messages to its receiver are signed. Raises BadInput."""
    return {} if signer is None else {IDENTITY_META_KEY: signer.sign_content(call, content, capability)}


def bind_current_call(handler: Handler) -> Handler:
    """The same handler, with `current_call` set while it runs."""

    async def handle(call: Call, emit: Emit) -> Result:
        token = current_call.set(call)
        try:
            return await handler(call, emit)
        finally:
            current_call.reset(token)

    return handle
