"""Conversations: who may send and read in them, derived ids, not-found errors, and the signals that wake followers.

Ids are derived from keys, so that sending the same message twice stores it once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from a2a_fabric.core.call import Principal, caller_name, owner_from_principal
from a2a_fabric.core.errors import CallerError, Forbidden, register_error_code
from a2a_fabric.core.limits import ANONYMOUS_CALLER
from a2a_fabric.core.message import Message, Party, new_conversation_id
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.tasks import TopicSignals


class Senders:
    """`find_registration` gives the registration of an agent, if it has one; an operator may act as everyone."""

    def __init__(
        self, find_registration: Callable[[str], Registration | None], is_operator: Callable[[Principal], bool]
    ) -> None:
        self._find_registration = find_registration
        self._is_operator = is_operator

    def party_of(self, principal: Principal) -> Party:
        return Party(id=caller_name(principal) or ANONYMOUS_CALLER, kind="client")

    def may_act_as(self, principal: Principal, party: Party) -> bool:
        """A client may act as itself, an owner as its registered agents, the node's own key as everyone.

        For an agent without a registration, the caller with the same id may act.
        """
        if self._is_operator(principal):
            return True
        registration = self._find_registration(party.id) if party.kind == "agent" else None
        if registration is not None:
            return registration.owner == owner_from_principal(principal)
        return party.id == (caller_name(principal) or ANONYMOUS_CALLER)

    def check(self, principal: Principal, party: Party, field: str) -> None:
        """Raises Forbidden."""
        if not self.may_act_as(principal, party):
            own_id = caller_name(principal) or ANONYMOUS_CALLER
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


_MAX_ID_SHOWN = 64
_DIGITS = 32  # of an id after its prefix
_OWN_PREFIX = "msg_"  # see `new_message_id`


@register_error_code
class MessageNotFound(CallerError):
    code = "MESSAGE_NOT_FOUND"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message '{message_id[:_MAX_ID_SHOWN]}' not found", message_id=message_id[:_MAX_ID_SHOWN])


@register_error_code
class ConversationNotFound(CallerError):
    code = "CONVERSATION_NOT_FOUND"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Conversation '{conversation_id[:_MAX_ID_SHOWN]}' not found",
            conversation_id=conversation_id[:_MAX_ID_SHOWN],
        )


def derive_conversation_id(owner: str, key: str | None) -> str:
    """A new id, or with a key always the same one, so that a message that is sent twice has one conversation."""
    return new_conversation_id() if key is None else f"conv_{_digest(owner, key)}"


def derive_delivery_id(message_id: str, key: str | None) -> str:
    """The id of the job that delivers a message.

    Without a key, the id of the message is the node's own. Such ids sort by age, and so do the ids of their jobs: a
    store writes them side by side, and not each to another page.
    """
    if key is None and len(message_id) == len(_OWN_PREFIX) + _DIGITS and message_id.startswith(_OWN_PREFIX):
        return f"task_{message_id[len(_OWN_PREFIX) :]}"
    return derive_older_delivery_id(message_id)


def derive_older_delivery_id(message_id: str) -> str:
    """The id that older versions gave to every such job."""
    return f"task_{_digest(message_id)}"


def _digest(*values: str) -> str:
    return hashlib.sha256("\0".join(values).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


class ConversationSignals(TopicSignals):
    """Wakes the followers of a conversation in this process; the topics are conversation ids."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    def stop(self) -> None:
        """The node stops: requests that only wait end now."""
        self.is_stopped = True
        self.post_all()
