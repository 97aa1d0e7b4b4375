"""Lets agents join, stay and leave while the node runs. Operations and doors ask here, in the name of a principal.

What files declare is theirs: nobody registers under such an id. What is
registered belongs to whoever registered it; the operator may remove it too. All methods may raise StoreError; then
nothing has changed on this node, and agents known so far go on serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from a2a_fabric.core.agent import Manifest, Status, TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import acts_as_operator, is_operator
from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, RateLimited
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.policy import check_register
from a2a_fabric.core.registration import HealthCheck, Registration, Reservation, refuse_stranger
from a2a_fabric.core.store_errors import StoreError, StoreUnavailable
from a2a_fabric.core.stores import Registrations
from a2a_fabric.registry.admission import Admission
from a2a_fabric.registry.history import HealthHistory, Uptime
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.stored import StoredAgents
from a2a_fabric.registry.terms import Terms, terms_of, with_terms
from a2a_fabric.schemas.joining import check_registration

T = TypeVar("T")

_PATIENCE = 5.0
_BRIEFLY = 1.0  # for what is also known here

CheckAddress = Callable[[str, TrustTier], Awaitable[None]]


class Registrar:
    """`check_address` raises Forbidden or BadInput for a URL that callers of that trust may not make us ask."""

    def __init__(
        self,
        store: Registrations,
        agents: StoredAgents,
        registry: Registry,
        admission: Admission,
        check_address: CheckAddress,
        history: HealthHistory,
        registered: Callable[[], None] = lambda: None,
        reserved_for: float = 0.0,
    ) -> None:
        self._store = store
        self._agents = agents
        self._registry = registry
        self._admission = admission
        self._check_address = check_address
        self._history = history
        self._registered = registered  # told of each one, for metrics
        names = admission.settings.max_per_owner
        self._reservation = Reservation(seconds=reserved_for, names=names)  # of ids that lapsed, for their owners

    async def register(self, manifest: Manifest, principal: Principal, lease: float | None = None) -> Registration:
        """Write or replace. When this returns, this node routes to the agent; others do within a second.

        Raises Forbidden, BadInput, Conflict, RateLimited.
        """
        self._admission.check(manifest, principal)
        self._refuse_declared(manifest.agent_id, "choose another id")
        if not acts_as_operator(principal):
            self._registry.refuse_name(manifest, principal)
        owner = owner_of(principal)
        self._refuse_too_many(manifest.agent_id, owner)
        await check_registration(manifest)
        uri = manifest.endpoint.get("uri")
        if isinstance(uri, str) and uri.startswith(("http://", "https://")):
            await self._check_address(uri, principal.trust)
        terms = self._terms(principal, lease)
        reservation = None if acts_as_operator(principal) else self._reservation
        made = await _in_time(self._store.register(with_terms(manifest, terms), owner, terms.lease, reservation))
        self._registered()
        await self._registry.load(self._agents)
        return made

    async def renew(self, agent_id: str, principal: Principal, lease: float | None = None) -> Registration:
        """A heartbeat. Raises AgentNotFound, Forbidden, BadInput."""
        known = await self._known(agent_id, principal)
        refuse_stranger(known, owner_of(principal))
        terms = terms_of(known.manifest)
        given = self._checked(lease) if lease is not None else None
        length = given or (terms.lease if terms is not None else self._admission.settings.lease_seconds)
        renewed = await _in_time(self._store.renew(agent_id, owner_of(principal), length))
        self._agents.keep(renewed)
        return renewed

    def tell_health(self, agent_id: str, status: Status, error: str | None) -> None:
        """What an agent says of itself, on this node. Raises AgentNotFound."""
        self._registry.update_health(agent_id, status, error)

    async def remove(self, agent_id: str, principal: Principal) -> None:
        """One's own; the operator's key removes anybody's. Raises AgentNotFound, Forbidden, Conflict."""
        known = await self._known(agent_id, principal)
        if not is_operator(principal):
            refuse_stranger(known, owner_of(principal))
        if not await _in_time(self._store.remove(agent_id, known.owner)):
            raise AgentNotFound(agent_id)
        await self._registry.load(self._agents)

    async def registration_of(self, agent_id: str) -> Registration | None:
        """None for an agent that was not registered. As this node knows it while the store is away."""
        known = self.known(agent_id)
        if known is None:
            return None
        if self._agents.is_away:
            return known
        try:
            return await _in_time(self._store.get(agent_id), _BRIEFLY) or known
        except StoreError:
            return known

    def known(self, agent_id: str) -> Registration | None:
        """As this node knows it, without asking the store; None for an agent that was not registered."""
        known = self._agents.get(agent_id)
        is_away = self._registry.is_declared(agent_id, besides=self._agents) or self._registry.is_hidden(agent_id)
        return None if is_away else known

    def owner_of(self, agent_id: str) -> str | None:
        """None for an agent that was not registered."""
        known = self.known(agent_id)
        return None if known is None else known.owner

    async def history(self, agent_id: str, window: float, limit: int) -> tuple[Uptime, Sequence[HealthCheck]]:
        return await _in_time(self._history.of(agent_id, window, limit))

    async def _known(self, agent_id: str, principal: Principal) -> Registration:
        """Raises Forbidden, Conflict, AgentNotFound: of others' agents only what this caller may know of."""
        check_register(principal, agent_id)
        known = await _in_time(self._store.get(agent_id))
        is_seen = is_operator(principal) or self._registry.get_for(principal, agent_id) is not None
        if known is None and is_seen:
            self._refuse_declared(agent_id, "it was not registered")
        if known is None or not (is_seen or known.owner == owner_of(principal)):
            own = [row.agent_id for row in self._agents.all() if row.owner == owner_of(principal)]
            raise AgentNotFound(agent_id, own)
        return known

    def _refuse_declared(self, agent_id: str, so: str) -> None:
        if self._registry.is_declared(agent_id, besides=self._agents):
            raise Conflict(
                f"'{agent_id}' is declared by this node itself, which alone may change it: {so}", agent_id=agent_id
            )

    def _refuse_too_many(self, agent_id: str, owner: str) -> None:
        most = self._admission.settings.max_per_owner
        if self._agents.get(agent_id) is None and self._agents.count_of(owner) >= most:
            raise RateLimited(f"This caller has registered {most} agents already, which is the limit", 60.0)

    def _terms(self, principal: Principal, lease: float | None) -> Terms:
        length = self._admission.settings.lease_seconds if lease is None else self._checked(lease)
        return Terms(
            trust=principal.trust,
            lease=length,
            checks_renew=lease is None,
            owner=owner_of(principal),
            by_operator=acts_as_operator(principal),
        )

    def _checked(self, lease: float) -> float:
        longest = self._admission.settings.max_lease_seconds
        if not 1.0 <= lease <= longest:
            raise BadInput(f"lease_seconds is between 1 and {longest:.0f}", field="lease_seconds")
        return lease


async def _in_time(asked: Awaitable[T], patience: float = _PATIENCE) -> T:
    try:
        async with asyncio.timeout(patience):
            return await asked
    except TimeoutError as exc:
        raise StoreUnavailable(f"The store did not answer within {patience:g} s") from exc
