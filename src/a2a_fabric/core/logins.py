"""Logins of principals at agents that want OAuth: what a store keeps of them, and what a runtime asks for.

A principal signs in to an agent once. Its tokens are kept under its own name (`owner`, see
`core.call.owner_from_principal`) and are used for its own calls only. A store never sees a token:
`secret` is encrypted before it gets there.

What such an agent offers may differ by principal. `PersonalListings` has what it offered each of them last; nothing
of that is ever shown to another principal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, ToolText, normalize_name
from a2a_fabric.core.call import Call, Principal, owner_from_principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.result import Question, Questions

LOGIN_CONTINUATION = "login"  # of a call that waits for one
LOGIN_QUESTION = "login"
_MAX_APPROVED = 4000  # tools of one principal at one agent that are remembered though they are no longer offered
_MAX_LISTING_BYTES = 64 << 20  # of all listings in memory, as they are stored


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


class StoredListing(NamedTuple):
    owner: str
    agent_id: str
    listing: bytes


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

    async def set_listing(self, owner: str, agent_id: str, listing: bytes) -> bool:
        """False if there is no such login any more."""
        ...

    async def read_listings(self, limit: int) -> Sequence[StoredListing]:
        """What agents offered the principals that are signed in, those last changed first."""
        ...

    async def add_attempt(self, attempt: LoginAttempt, most: int) -> None:
        """Attempts that have expired are removed, and the oldest of this owner beyond `most`."""
        ...

    async def take_attempt(self, attempt_id: str) -> LoginAttempt | None:
        """The attempt, once: it is removed. None if there is none, or it has expired."""
        ...


class BearerSource(Protocol):
    """The token of one principal at one agent. Both methods may raise any FabricError."""

    async def get(self) -> str | None:
        """None: requests are sent without a token."""
        ...

    async def renew(self, rejected: str | None) -> str | None:
        """Another token than the rejected one."""
        ...

    def reject(self) -> None:
        """A token was rejected although it is new."""
        ...


class PersonalListing(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent offers one principal. The entries beside the capabilities are those of an MCP server's lists."""

    capabilities: tuple[Capability, ...] = ()
    prompts: tuple[dict[str, Any], ...] = ()
    resources: tuple[dict[str, Any], ...] = ()
    templates: tuple[dict[str, Any], ...] = ()
    approved: dict[str, str] = {}  # by normalized name, the digest of what a tool said when it was first offered
    changed_tools: frozenset[str] = frozenset()  # those that say something else now

    def keep_approvals(self, previous: PersonalListing | None) -> PersonalListing:
        """The same listing; what the principal was offered before stays approved as it was then."""
        digests = {normalize_name(each.name): ToolText.from_capability(each).digest for each in self.capabilities}
        earlier = {} if previous is None else previous.approved
        if len(earlier) > _MAX_APPROVED:
            earlier = {name: digest for name, digest in earlier.items() if name in digests}
        changed = frozenset(name for name, digest in digests.items() if earlier.get(name, digest) != digest)
        return msgspec.structs.replace(self, approved={**digests, **earlier}, changed_tools=changed)


class PersonalListings:
    """What agents offered each principal that is signed in, by owner and agent; in memory, and bounded.

    The listings of one owner are a mapping that is replaced as a whole, so its identity tells whether it has changed.
    If there is too much, the owners that were not asked for since longest are dropped.
    """

    def __init__(self, max_bytes: int = _MAX_LISTING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._by_owner: OrderedDict[str, Mapping[str, PersonalListing]] = OrderedDict()
        self._sizes: dict[str, dict[str, int]] = {}
        self._total = 0
        self._listeners: list[Callable[[str], None]] = []

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the owner after each change of its listings."""
        self._listeners.append(listener)

    def find(self, owner: str) -> Mapping[str, PersonalListing] | None:
        listings = self._by_owner.get(owner)
        if listings is not None:
            self._by_owner.move_to_end(owner)
        return listings

    def get(self, owner: str, agent_id: str) -> PersonalListing | None:
        return (self.find(owner) or {}).get(agent_id)

    def set(self, owner: str, agent_id: str, listing: PersonalListing, size: int) -> None:
        """`size` is that of its encoded form."""
        others = self._by_owner.get(owner, {})
        if others.get(agent_id) == listing:
            return
        self._by_owner[owner] = {**others, agent_id: listing}
        self._by_owner.move_to_end(owner)
        sizes = self._sizes.setdefault(owner, {})
        self._total += size - sizes.get(agent_id, 0)
        sizes[agent_id] = size
        while self._total > self._max_bytes and len(self._by_owner) > 1:
            dropped, _ = self._by_owner.popitem(last=False)
            self._total -= sum(self._sizes.pop(dropped).values())
        self._notify(owner)

    def remove(self, owner: str, agent_id: str) -> None:
        listings = self._by_owner.get(owner, {})
        if agent_id not in listings:
            return
        self._total -= self._sizes[owner].pop(agent_id)
        if len(listings) > 1:
            self._by_owner[owner] = {name: listing for name, listing in listings.items() if name != agent_id}
        else:
            del self._by_owner[owner], self._sizes[owner]
        self._notify(owner)

    def _notify(self, owner: str) -> None:
        for listener in self._listeners:
            listener(owner)


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
        self.continuation: str | None = None  # as routing seals it for this caller

    @property
    def questions(self) -> Questions | None:
        """The same for a client that can open a page for its user, after which the call goes on."""
        if self.url is None or self.continuation is None:
            return None
        message = (
            f"Sign in to '{self.agent_id}' in your browser, or run: a2a-fabric login {self.agent_id}. "
            "Then the call can go on"
        )
        question = Question(kind="url", message=message, params={"url": self.url})
        return Questions(questions={LOGIN_QUESTION: question}, continuation=self.continuation)


def login_error_from_questions(questions: Questions) -> LoginRequired | None:
    """The error that these questions stand for; None if they are an agent's own."""
    question = questions.questions.get(LOGIN_QUESTION)
    is_login = questions.continuation.endswith(f":{LOGIN_CONTINUATION}")
    if not is_login or question is None or question.kind != "url":
        return None
    return LoginRequired(questions.continuation.partition(":")[0], url=str(question.params.get("url", "")))


def find_login_owner(principal: Principal) -> str | None:
    """The name under which the logins of this principal are kept; None if it cannot have any.

    Callers without a name are one person on a node that listens on loopback only. Elsewhere they could be anybody,
    and would use each other's accounts.
    """
    is_nameless = principal.principal_id is None and principal.trust != "local"
    return None if is_nameless else owner_from_principal(principal)


def login_owner(principal: Principal) -> str:
    """The same. Raises Forbidden for a principal that cannot have logins."""
    owner = find_login_owner(principal)
    if owner is None:
        raise Forbidden("Only a caller with credentials can sign in to an agent: send 'Authorization: Bearer TOKEN'")
    return owner


def login_owner_from_call(call: Call) -> str:
    """A node that calls on behalf of others has a login for each of them. Raises Forbidden."""
    owner = login_owner(call.auth)
    return f"{owner} for {owner_from_principal(call.on_behalf_of)}" if call.on_behalf_of else owner
