"""Who a caller may send messages as, and whose messages it may read."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.limits import ANONYMOUS_CALLER
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.registration import Registration


class Senders:
    """`find_registration` gives the registration of an agent, if it has one; an operator may act as everyone."""

    def __init__(
        self, find_registration: Callable[[str], Registration | None], is_operator: Callable[[Principal], bool]
    ) -> None:
        self._find_registration = find_registration
        self._is_operator = is_operator

    def party_of(self, principal: Principal) -> Party:
        return Party(id=principal.principal_id or ANONYMOUS_CALLER, kind="client")

    def may_act_as(self, principal: Principal, party: Party) -> bool:
        """A client may act as itself, an owner as its registered agents, the node's own key as everyone.

        For an agent without a registration, the caller with the same id may act.
        """
        if self._is_operator(principal):
            return True
        registration = self._find_registration(party.id) if party.kind == "agent" else None
        if registration is not None:
            return registration.owner == owner_from_principal(principal)
        return party.id == (principal.principal_id or ANONYMOUS_CALLER)

    def check(self, principal: Principal, party: Party, field: str) -> None:
        """Raises Forbidden."""
        if not self.may_act_as(principal, party):
            own_id = principal.principal_id or ANONYMOUS_CALLER
            raise Forbidden(
                f"These credentials belong to '{own_id}' and may not act for {party.inbox[:128]}", field=field
            )

    def may_read(self, principal: Principal, message: Message) -> bool:
        """The sender and the recipients may read it, but not an owner that registered a recipient's id later."""
        if message.owner == owner_from_principal(principal) or self._is_operator(principal):
            return True
        return any(
            self.may_act_as(principal, party) and not self._predates_owner(message, party)
            for party in message.recipients
        )

    def _predates_owner(self, message: Message, party: Party) -> bool:
        """Whether the message was written before the recipient's present owner took its id."""
        registration = self._find_registration(party.id) if party.kind == "agent" else None
        return registration is not None and message.sent_at < registration.registered_at
