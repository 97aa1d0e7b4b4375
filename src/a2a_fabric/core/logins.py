"""Logins of principals at agents that want OAuth: what a store keeps of them, and what a runtime asks for.

A principal signs in to an agent once. Its tokens are kept under its own name (`owner`, see
`core.call.owner_from_principal`) and are used for its own calls only. A store never sees a token:
`secret` is encrypted before it gets there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from a2a_fabric.core.call import Call, Principal, owner_from_principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.result import Question, Questions

LOGIN_CONTINUATION = "login"  # of a call that waits for one
LOGIN_QUESTION = "login"


class LoginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`listing` is what the agent offered this principal last.

    `revision` changes with the secret. A new login begins at a random number, so that no change that was meant for an
    earlier login of the same principal applies to it.
    """

    owner: str
    agent_id: str
    issuer: str
    scopes: tuple[str, ...] = ()
    secret: bytes
    created_at: float = 0.0
    updated_at: float = 0.0
    revision: int
    listing: bytes | None = None


class LoginAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A login that was started. Its id can only be computed by the party that may finish it."""

    attempt_id: str
    owner: str
    agent_id: str
    secret: bytes
    expires_at: float


class LoginStore(Protocol):
    """The store port for logins. The rules of `core.stores` hold."""

    async def get(self, owner: str, agent_id: str) -> LoginRecord | None: ...

    async def list(self, owner: str) -> Sequence[LoginRecord]:
        """All logins of one principal, by agent."""
        ...

    async def put(self, record: LoginRecord, expected: int | None = None) -> bool:
        """Write a new login, in place of an earlier one. With `expected`, only the secret of the login that still has
        this revision is replaced; False if another node was faster or the login is gone.
        """
        ...

    async def remove(self, owner: str, agent_id: str) -> bool: ...

    async def set_listing(self, owner: str, agent_id: str, listing: bytes) -> None: ...

    async def read_listings(self, agent_id: str, limit: int = 1000) -> Sequence[bytes]:
        """What the agent offered the principals that are signed in, those last changed first."""
        ...

    async def add_attempt(self, attempt: LoginAttempt, most: int) -> None:
        """Attempts that have expired are removed, and the oldest of this owner beyond `most`."""
        ...

    async def take_attempt(self, attempt_id: str) -> LoginAttempt | None:
        """The attempt, once: it is removed. None if there is none, or it has expired."""
        ...


class LoginRequired(Forbidden):
    """The agent wants this principal to sign in first. `url` is a page of this node that leads there, if it has one."""

    def __init__(self, agent_id: str, why: str = "", *, url: str | None = None) -> None:
        reason = why or f"Agent '{agent_id}' wants you to sign in with your own account"
        super().__init__(
            f"{reason}. Run: a2a-fabric login {agent_id}",
            agent_id=agent_id,
            reason="login_required",
            command=f"a2a-fabric login {agent_id}",
        )
        self.agent_id = agent_id
        self.url = url

    @property
    def questions(self) -> Questions | None:
        """The same for a client that can open a page for its user, after which the call goes on."""
        if self.url is None:
            return None
        message = f"Sign in to '{self.agent_id}' in your browser, so that the call can go on"
        question = Question(kind="url", message=message, params={"url": self.url})
        # As routing writes it for an agent's own questions: with the agent that asks before the colon.
        return Questions(questions={LOGIN_QUESTION: question}, continuation=f"{self.agent_id}:{LOGIN_CONTINUATION}")


def login_owner(principal: Principal) -> str:
    """The name under which the logins of this principal are kept.

    Callers without a name are one person on a node that listens on loopback only. Elsewhere they could be anybody,
    and would use each other's accounts. Raises Forbidden for them.
    """
    if principal.principal_id is None and principal.trust != "local":
        raise Forbidden("Only a caller with credentials can sign in to an agent: send 'Authorization: Bearer TOKEN'")
    return owner_from_principal(principal)


def login_owner_from_call(call: Call) -> str:
    """A node that calls on behalf of others has a login for each of them. Raises Forbidden."""
    owner = login_owner(call.auth)
    return f"{owner} for {owner_from_principal(call.on_behalf_of)}" if call.on_behalf_of else owner
