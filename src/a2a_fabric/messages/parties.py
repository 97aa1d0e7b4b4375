"""Who a caller may speak for, and whose messages they may read: a pure answer to who is who."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.registration import Registration

NOBODY = "anonymous"


class Parties:
    """`registration_of` a registered agent says whose it is, None for others; `is_operator` who may do everything."""

    def __init__(
        self, registration_of: Callable[[str], Registration | None], is_operator: Callable[[Principal], bool]
    ) -> None:
        self._registration_of = registration_of
        self._is_operator = is_operator

    def self_of(self, principal: Principal) -> Party:
        return Party(id=principal.principal_id or NOBODY, kind="client")

    def may_act_as(self, principal: Principal, party: Party) -> bool:
        """A client for itself, whoever registered an agent for that, the node's own key for everybody.

        An agent that nobody registered is whoever has credentials of the same name.
        """
        if self._is_operator(principal):
            return True
        known = self._registration_of(party.id) if party.kind == "agent" else None
        if known is not None:
            return known.owner == owner_of(principal)
        return party.id == (principal.principal_id or NOBODY)

    def check(self, principal: Principal, party: Party, field: str) -> None:
        """Raises Forbidden."""
        if not self.may_act_as(principal, party):
            own = principal.principal_id or NOBODY
            raise Forbidden(
                f"These credentials belong to '{own}' and do not speak for {party.inbox[:128]}", field=field
            )

    def may_read(self, principal: Principal, message: Message) -> bool:
        """Whoever wrote it, and whoever it was for: not an owner to whom the recipient's id came later."""
        if message.owner == owner_of(principal) or self._is_operator(principal):
            return True
        return any(
            self.may_act_as(principal, party) and not self._is_older(message, party) for party in message.recipients
        )

    def _is_older(self, message: Message, party: Party) -> bool:
        """Whether the message was written before the recipient's present owner took its id."""
        known = self._registration_of(party.id) if party.kind == "agent" else None
        return known is not None and message.sent_at < known.registered_at
