"""What all requests have in common: who is let in, at which address, and what can be asked there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from msgspec import UNSET, UnsetType

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import HEADER, from_header
from a2a_fabric.core.errors import RateLimited, Unauthenticated
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.a2a.operations import Operations
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.http import Head
from a2a_fabric.identity.credentials import Credentials

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_STRANGER = Principal(mode="none", principal_id="anonymous", trust="public")
_NEIGHBOUR = Principal(mode="none", principal_id="anonymous", trust="local")


class House:
    def __init__(self, context: DoorContext, operations: Operations, settings: A2ADoorSettings) -> None:
        self.context = context
        self.operations = operations
        self.settings = settings
        self.plain = operations.by_name()
        self.streaming = operations.streaming()
        self._streams = 0

    def visit(self, scope: Any, head: Head, agent_id: str | None, trace: Trace) -> Visit:
        """Raises FabricError: who is not let in, and who is not here."""
        visit = Visit(
            principal=self.context.identify(head.credentials),
            trace=trace,
            base=self._base(scope, head),
            after=head.last_event_id,
            delegation_chain=_passed(head),
        )
        return self._at(visit, agent_id)

    def card_visit(self, scope: Any, head: Head, agent_id: str | None, trace: Trace) -> Visit:
        """Cards are also shown to strangers, if they may be. Raises FabricError."""
        try:
            principal = self.context.identify(head.credentials)
        except Unauthenticated:
            if _is_near(scope, head.credentials):
                principal = _NEIGHBOUR
            elif self.settings.public_cards:
                principal = _STRANGER
            else:
                raise
        return self._at(Visit(principal=principal, trace=trace, base=self._base(scope, head)), agent_id)

    def _at(self, visit: Visit, agent_id: str | None) -> Visit:
        if agent_id is None:
            return visit
        return Visit(
            principal=visit.principal,
            trace=visit.trace,
            base=visit.base,
            after=visit.after,
            delegation_chain=visit.delegation_chain,
            agent=self.operations.agent(agent_id, visit),
        )

    def _base(self, scope: Any, head: Head) -> str:
        """Where this caller reaches us."""
        if self.settings.public_url is not None:
            return self.settings.public_url.rstrip("/")
        host = head.get(b"host") or ""
        return f"{scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else 'localhost'}"

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Raises RateLimited."""
        if self._streams >= self.settings.max_streams:
            raise RateLimited(f"{self.settings.max_streams} streams are open already, which is the limit", 5.0)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _passed(head: Head) -> tuple[str, ...] | UnsetType:
    given = head.get(HEADER.encode())
    return from_header(given) if given else UNSET


def _is_near(scope: Any, credentials: Credentials) -> bool:
    """A program on this machine that calls us by a local name; not a page of another site, nor a proxy."""
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback and not credentials.is_from_a_strange_page
    except ValueError:
        return False
