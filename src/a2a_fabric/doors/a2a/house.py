"""What all requests have in common: who is let in, at which address, and what can be asked there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from a2a_fabric.core.shares import Shares
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.a2a.extensions import HEADERS, Agreement
from a2a_fabric.doors.a2a.operations import Operations
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.versions import SUPPORTED, Version
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.doorkeeper import Doorkeeper, base_of
from a2a_fabric.doors.http import Head
from a2a_fabric.identity.credentials import Credentials


class House:
    def __init__(self, context: DoorContext, operations: Operations, settings: A2ADoorSettings) -> None:
        self.context = context
        self.operations = operations
        self.settings = settings
        self.plain = operations.by_name()
        self.streaming = operations.streaming()
        self.body_bytes = max(settings.body_bytes, context.body_bytes)
        self.versions: tuple[Version, ...] = SUPPORTED if settings.version_0_3 else ("1.0",)
        self._near = Doorkeeper(context.identify, "local")
        self._far = Doorkeeper(context.identify, "public" if settings.public_cards else None)
        self._streams = Shares("open A2A streams", settings.max_streams, context.share, retry_after=5.0)

    def visit(self, scope: Any, head: Head, agent_id: str | None, trace: Trace) -> Visit:
        """Raises FabricError: who is not let in, and who is not here."""
        visit = Visit(
            principal=self.context.identify(head.credentials),
            trace=trace,
            base=self._base(scope, head),
            after=head.last_event_id,
            delegation_chain=head.delegation_chain,
            extensions=Agreement(_named(head)),
        )
        return self._at(visit, agent_id)

    def card_visit(self, scope: Any, head: Head, agent_id: str | None, trace: Trace) -> Visit:
        """Cards are also shown to strangers, if they may be. Raises FabricError."""
        doorkeeper = self._near if _is_near(scope, head.credentials) else self._far
        visit = Visit(principal=doorkeeper(head.credentials), trace=trace, base=self._base(scope, head))
        return self._at(visit, agent_id)

    def _at(self, visit: Visit, agent_id: str | None) -> Visit:
        return visit if agent_id is None else self.operations.meeting(agent_id, visit)

    def _base(self, scope: Any, head: Head) -> str:
        """Where this caller reaches us over HTTP; whoever comes through gRPC does not say."""
        public_url = self.context.public_url
        return base_of(public_url, scope, head) if public_url is not None or "scheme" in scope else ""

    @contextmanager
    def stream(self, visit: Visit) -> Iterator[None]:
        """Before anything begins that is to be told on one. Raises RateLimited."""
        self.context.streams.check(visit.principal.principal_id)
        with self._streams.held(visit.principal.principal_id):
            yield


def _named(head: Head) -> str:
    """The extensions that a caller says they know; each version calls the header otherwise."""
    return next((told for name in HEADERS.values() if (told := head.get(name))), "")


def _is_near(scope: Any, credentials: Credentials) -> bool:
    """A program on this machine that calls us by a local name; not a page of another site, nor a proxy."""
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback and not credentials.is_from_a_strange_page
    except ValueError:
        return False
