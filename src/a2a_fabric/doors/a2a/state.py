"""State that all requests of the A2A door share: settings, operations, authentication, stream limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.a2a.operations import A2AOperations
from a2a_fabric.doors.a2a.request_context import (
    EXTENSION_HEADERS,
    SUPPORTED_VERSIONS,
    A2ARequestContext,
    ExtensionNegotiation,
)
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy, RequestHead, base_url_for
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.protocols.a2a.models import A2AVersion


class A2ADoorState:
    def __init__(self, context: DoorContext, operations: A2AOperations, settings: A2ADoorSettings) -> None:
        self.context = context
        self.operations = operations
        self.settings = settings
        self.plain_operations = operations.list_plain_operations()
        self.streaming_operations = operations.list_streaming_operations()
        self.body_bytes = max(settings.body_bytes, context.body_bytes)
        self.versions: tuple[A2AVersion, ...] = SUPPORTED_VERSIONS if settings.version_0_3 else ("1.0",)
        self._local_policy = AnonymousPolicy(context.identify, "local")
        self._remote_policy = AnonymousPolicy(context.identify, "public" if settings.public_cards else None)
        self.stream_shares = FairLimit("open A2A streams", settings.max_streams, context.caller_share, retry_after=5.0)

    def build_context(self, scope: Any, head: RequestHead, agent_id: str | None, trace: Trace) -> A2ARequestContext:
        """Raises FabricError if the caller is refused or the agent is not found."""
        # The extensions header has another name in each version.
        extensions = next((value for name in EXTENSION_HEADERS.values() if (value := head.get(name))), "")
        context = A2ARequestContext(
            principal=self.context.identify(head.credentials),
            trace=trace,
            base_url=self._find_base_url(scope, head),
            last_event_id=head.last_event_id,
            delegation_chain=head.delegation_chain,
            extensions=ExtensionNegotiation(extensions),
        )
        return self._attach_agent(context, agent_id)

    def build_card_context(
        self, scope: Any, head: RequestHead, agent_id: str | None, trace: Trace
    ) -> A2ARequestContext:
        """A card may also be shown to an anonymous caller. Raises FabricError."""
        policy = self._local_policy if _is_local_client(scope, head.credentials) else self._remote_policy
        context = A2ARequestContext(
            principal=policy(head.credentials), trace=trace, base_url=self._find_base_url(scope, head)
        )
        return self._attach_agent(context, agent_id)

    def _attach_agent(self, context: A2ARequestContext, agent_id: str | None) -> A2ARequestContext:
        return context if agent_id is None else self.operations.attach_agent(agent_id, context)

    def _find_base_url(self, scope: Any, head: RequestHead) -> str:
        """The base URL of this caller's HTTP request; empty for a gRPC request without a configured public URL."""
        public_url = self.context.public_url
        return base_url_for(public_url, scope, head) if public_url is not None or "scheme" in scope else ""

    @contextmanager
    def hold_stream(self, context: A2ARequestContext) -> Iterator[None]:
        """Count a stream against the caller's share before its task starts. Raises RateLimited."""
        self.context.streams.check(context.principal.principal_id)
        with self.stream_shares.hold(context.principal.principal_id):
            yield


def _is_local_client(scope: Any, credentials: Credentials) -> bool:
    """Whether the client is a program on this machine: not a proxy, and not a web page of another site."""
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback and not credentials.is_cross_site
    except ValueError:
        return False
