"""Registration at run time: agents register, renew their lease and leave, each in the name of a principal.

An id declared in a file cannot be registered. A registration belongs to the principal
that made it; the operator may remove it too. All methods may raise StoreError; then
nothing has changed on this node, and the agents registered before keep serving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest, Status, TrustTier
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.disclosure import acts_as_operator, is_operator
from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, RateLimited, StoreError
from a2a_fabric.core.policy import check_register
from a2a_fabric.core.registration import HealthCheck, IdReservation, Registration, check_owner
from a2a_fabric.core.stores import RegistrationStore, call_store_within
from a2a_fabric.registry.health import HealthHistory, Uptime
from a2a_fabric.registry.registration_policy import RegistrationPolicy, RegistrationTerms, add_terms, read_terms
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.sources.store import StoredAgents
from a2a_fabric.schemas.manifest_check import check_registered_schemas

_STORE_TIMEOUT = 5.0
_SHORT_TIMEOUT = 1.0  # for a registration that this node has cached

CheckAddress = Callable[[str, TrustTier], Awaitable[None]]


class Registrar:
    """`check_address` raises Forbidden or BadInput for a URL that callers of that trust may not register."""

    def __init__(
        self,
        store: RegistrationStore,
        agents: StoredAgents,
        registry: Registry,
        policy: RegistrationPolicy,
        check_address: CheckAddress,
        history: HealthHistory,
        on_registered: Callable[[], None] = lambda: None,
        reservation_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._agents = agents
        self._registry = registry
        self._policy = policy
        self._check_address = check_address
        self._history = history
        self._on_registered = on_registered  # for metrics
        name_limit = policy.settings.max_per_owner
        self._reservation = IdReservation(
            seconds=reservation_seconds, names=name_limit
        )  # of ids that lapsed, for their owners

    async def register(self, manifest: Manifest, principal: Principal, lease: float | None = None) -> Registration:
        """Write or replace. When this returns, this node routes to the agent; others do within a second.

        Raises Forbidden, BadInput, Conflict, RateLimited.
        """
        self._policy.check(manifest, principal)
        self._refuse_declared(manifest.agent_id, "choose another id")
        if not acts_as_operator(principal):
            self._registry.check_name(manifest, principal)
        owner = owner_from_principal(principal)
        self._refuse_too_many(manifest.agent_id, owner)
        await check_registered_schemas(manifest)
        uri = manifest.endpoint.get("uri")
        if isinstance(uri, str) and uri.startswith(("http://", "https://")):
            await self._check_address(uri, principal.trust)
        terms = self._build_terms(principal, lease)
        reservation = None if acts_as_operator(principal) else self._reservation
        registration = await call_store_within(
            _STORE_TIMEOUT, self._store.register, add_terms(manifest, terms), owner, terms.lease, reservation
        )
        self._on_registered()
        await self._registry.load(self._agents)
        return registration

    async def renew(self, agent_id: str, principal: Principal, lease: float | None = None) -> Registration:
        """A heartbeat. Raises AgentNotFound, Forbidden, BadInput."""
        registration = await self._load_registration(agent_id, principal)
        check_owner(registration, owner_from_principal(principal))
        terms = read_terms(registration.manifest)
        new_lease = self._check_lease(lease) if lease is not None else None
        lease_seconds = new_lease or (terms.lease if terms is not None else self._policy.settings.lease_seconds)
        renewed = await call_store_within(
            _STORE_TIMEOUT, self._store.renew, agent_id, owner_from_principal(principal), lease_seconds
        )
        self._agents.update_renewed(renewed)
        return renewed

    def report_health(self, agent_id: str, status: Status, error: str | None) -> None:
        """Record the health that an agent reports to this node. Raises AgentNotFound."""
        self._registry.update_health(agent_id, status, error)

    async def remove(self, agent_id: str, principal: Principal) -> None:
        """Remove the caller's agent; the operator's key removes any. Raises AgentNotFound, Forbidden, Conflict."""
        registration = await self._load_registration(agent_id, principal)
        if not is_operator(principal):
            check_owner(registration, owner_from_principal(principal))
        if not await call_store_within(_STORE_TIMEOUT, self._store.remove, agent_id, registration.owner):
            raise AgentNotFound(agent_id)
        await self._registry.load(self._agents)

    async def find_registration(self, agent_id: str) -> Registration | None:
        """None for an agent that was not registered. While the store is unavailable, the cached one."""
        registration = self.find_local_registration(agent_id)
        if registration is None:
            return None
        if self._agents.is_store_unavailable:
            return registration
        try:
            return await call_store_within(_SHORT_TIMEOUT, self._store.get, agent_id) or registration
        except StoreError:
            return registration

    def find_local_registration(self, agent_id: str) -> Registration | None:
        """The cached registration, without asking the store; None for an agent that was not registered."""
        registration = self._agents.get(agent_id)
        is_shadowed = self._registry.is_declared(agent_id, excluding=self._agents) or self._registry.is_hidden(agent_id)
        return None if is_shadowed else registration

    def find_owner(self, agent_id: str) -> str | None:
        """None for an agent that was not registered."""
        registration = self.find_local_registration(agent_id)
        return None if registration is None else registration.owner

    async def read_history(self, agent_id: str, window: float, limit: int) -> tuple[Uptime, Sequence[HealthCheck]]:
        return await call_store_within(_STORE_TIMEOUT, self._history.read, agent_id, window, limit)

    async def _load_registration(self, agent_id: str, principal: Principal) -> Registration:
        """Raises Forbidden or Conflict, and AgentNotFound for agents that this caller may not know of."""
        check_register(principal, agent_id)
        registration = await call_store_within(_STORE_TIMEOUT, self._store.get, agent_id)
        is_visible = is_operator(principal) or self._registry.get_for(principal, agent_id) is not None
        if registration is None and is_visible:
            self._refuse_declared(agent_id, "it was not registered")
        if registration is None or not (is_visible or registration.owner == owner_from_principal(principal)):
            own_ids = [
                row.agent_id
                for row in self._agents.list_registrations()
                if row.owner == owner_from_principal(principal)
            ]
            raise AgentNotFound(agent_id, own_ids)
        return registration

    def _refuse_declared(self, agent_id: str, advice: str) -> None:
        if self._registry.is_declared(agent_id, excluding=self._agents):
            raise Conflict(
                f"'{agent_id}' is declared in this node's configuration and can only be changed there: {advice}",
                agent_id=agent_id,
            )

    def _refuse_too_many(self, agent_id: str, owner: str) -> None:
        limit = self._policy.settings.max_per_owner
        if self._agents.get(agent_id) is None and self._agents.count_owned_by(owner) >= limit:
            raise RateLimited(f"This caller has registered {limit} agents already, which is the limit", 60.0)

    def _build_terms(self, principal: Principal, lease: float | None) -> RegistrationTerms:
        lease_seconds = self._policy.settings.lease_seconds if lease is None else self._check_lease(lease)
        return RegistrationTerms(
            trust=principal.trust,
            lease=lease_seconds,
            checks_renew=lease is None,
            owner=owner_from_principal(principal),
            by_operator=acts_as_operator(principal),
        )

    def _check_lease(self, lease: float) -> float:
        max_lease = self._policy.settings.max_lease_seconds
        if not 1.0 <= lease <= max_lease:
            raise BadInput(f"lease_seconds must be between 1 and {max_lease:.0f}", field="lease_seconds")
        return lease
