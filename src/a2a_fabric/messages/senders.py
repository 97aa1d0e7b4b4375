"""Who a caller may send messages as, and whose messages it may read."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.registration import Registration

ANONYMOUS = "anonymous"


class Senders:
    """`registration_of` a registered agent says whose it is, None for others; `is_operator` who may do everything."""

    def __init__(
        self, find_registration: Callable[[str], Registration | None], is_operator: Callable[[Principal], bool]
    ) -> None:
        self._find_registration = find_registration
        self._is_operator = is_operator

    def party_of(self, principal: Principal) -> Party:
        return Party(id=principal.principal_id or ANONYMOUS, kind="client")

    def may_act_as(self, principal: Principal, party: Party) -> bool:
        """A client for itself, whoever registered an agent for that, the node's own key for everybody.

        An agent that nobody registered is whoever has credentials of the same name.
        """
        if self._is_operator(principal):
            return True
        registration = self._find_registration(party.id) if party.kind == "agent" else None
        if registration is not None:
            return registration.owner == owner_from_principal(principal)
        return party.id == (principal.principal_id or ANONYMOUS)

    def check(self, principal: Principal, party: Party, field: str) -> None:
        """Raises Forbidden."""
        if not self.may_act_as(principal, party):
            own_id = principal.principal_id or ANONYMOUS
            raise Forbidden(
                f"These credentials belong to '{own_id}' and do not speak for {party.inbox[:128]}", field=field
            )

    def may_read(self, principal: Principal, message: Message) -> bool:
        """Whoever wrote it, and whoever it was for: not an owner to whom the recipient's id came later."""
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
