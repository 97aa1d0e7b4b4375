"""How one door identifies callers: as the node does, and with the operator's rules that hold at this door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.call import Principal, bind_call
from a2a_fabric.core.recording import CallOrigin, current_origin
from a2a_fabric.identity.resolver import Credentials, MessageCredential


class CallerResolver(Protocol):
    """A resolver, or what checks the identities that other nodes forward and then asks a resolver."""

    def __call__(self, credentials: Credentials, /) -> Principal: ...

    def narrow(self, principal: Principal, credentials: Credentials, /) -> Principal: ...


AddCredentials = Callable[[Principal, Iterable[MessageCredential]], Awaitable[Principal]]


class DoorEntry:
    def __init__(
        self, door: str, resolver: CallerResolver, add_credentials: AddCredentials, active_policy: ActivePolicy
    ) -> None:
        self._door = door
        self._origin = CallOrigin(door=door, protocol=door)
        self._add_credentials = add_credentials
        self._active_policy = active_policy
        self.set_resolver(resolver)

    def set_resolver(self, resolver: CallerResolver) -> None:
        """Callers are identified in another way from now on."""
        self._resolver = resolver
        self._resolve = bind_call(resolver)

    def identify(self, credentials: Credentials) -> Principal:
        """Raises as the resolver does. The calls of this request are recorded as those of this door."""
        current_origin.set(self._origin)
        principal = self._resolve(credentials)
        return principal if self._active_policy.policy is None else self._bind(principal, credentials)

    def narrow(self, principal: Principal, credentials: Credentials) -> Principal:
        """A principal that the door itself admits, with the views that the request names. Raises BadInput."""
        narrowed = self._resolver.narrow(principal, credentials)
        return narrowed if self._active_policy.policy is None else self._bind(narrowed, credentials)

    async def add_credentials(self, principal: Principal, credentials: Iterable[MessageCredential]) -> Principal:
        """The caller of a message with passports or mandates of its own, sent by `principal`. Raises FabricError."""
        combined = await self._add_credentials(principal, credentials)
        if self._active_policy.policy is None or not principal.entry:
            return combined
        return self._active_policy.bind(combined, self._door, principal.entry.address, principal.entry.site)

    def _bind(self, principal: Principal, credentials: Credentials) -> Principal:
        return self._active_policy.bind(principal, self._door, credentials.peer.address, credentials.origin or "")
