"""The delegation chain: which nodes and agents a call has passed, so that loops are refused.

Each node adds an entry before it calls an agent: its own name and a digest of that agent's id,
`NODE/DIGEST`. The digest keeps agent ids from nodes and agents further down the chain. Entries
of older nodes are names without a digest.

Invariants of every call that a node lets pass (`check_chain`):

- The node does not occur in the chain before the entries at its end: work that has left
  a node for another one never comes back to it.
- The entries at the end may be the node's own, because its agents may call one another through
  it. None of them is for the agent that is called now: no agent of a node is called twice.
- The chain has fewer entries than the configured maximum.

A chain can only cause a refusal. The caller supplies it and it grants nothing, so a forged
chain harms only the call that carries it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput, DelegationRefused
from a2a_fabric.core.trace import format_traceparent, new_id

UNNAMED_NODE = "local"  # the default name of a node
MAX_HOPS = 8
DELEGATION_HEADER = "x-fabric-delegation"  # in HTTP headers and gRPC metadata
DELEGATION_HEADER_BYTES = DELEGATION_HEADER.encode()
DELEGATION_META_KEY = "a2a-fabric/delegation_chain"  # in the metadata of A2A, MCP and the Agent Client Protocol
DELEGATION_VARIABLE = "FABRIC_DELEGATION_CHAIN"  # in the environment of a program, written as in the header

_MAX_ENTRIES = 64  # entries; a longer chain is refused
_MAX_NAME = 256  # characters
_MAX_HEADER = 16 * 1024
_DIGEST_LENGTH = 12  # hexadecimal digits
_CACHE_SIZE = 1024
_NO_HEADERS: Mapping[str, str] = {}

Chain = tuple[str, ...]
MaybeChain = Chain | UnsetType
WireChain = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=_MAX_NAME)], ...], Meta(max_length=_MAX_ENTRIES)
]


def make_chain_name(node_id: str) -> str:
    """The node's name in a chain: its own, or a random one for as long as it runs."""
    return node_id if node_id != UNNAMED_NODE else f"{UNNAMED_NODE}-{new_id()[:8]}"


def make_chain_entry(node: str, agent_id: str) -> str:
    """The entry that a node adds to a chain before it asks this agent."""
    digest = hashlib.sha256(f"{node}\0{agent_id}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{node}/{digest}"


def check_chain(chain: Sequence[str], node: str, max_hops: int, agent_id: str | None = None) -> None:
    """Raises DelegationRefused if the call left this node before, passed this agent before, or is too long."""
    own_start = len(chain)
    while own_start and _is_entry_of(chain[own_start - 1], node):
        own_start -= 1
    if any(_is_entry_of(entry, node) for entry in chain[:own_start]):
        raise DelegationRefused(f"The call has passed node '{node}' already", "LOOP", [*chain, node])
    if agent_id is not None and own_start < len(chain):
        entry = make_chain_entry(node, agent_id)
        if entry in chain[own_start:]:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, entry])
    if len(chain) >= max_hops:
        raise DelegationRefused(f"The call has passed {len(chain)} nodes, and {max_hops} is the most", "DEPTH", chain)


def _is_entry_of(entry: str, node: str) -> bool:
    """Whether this node added the entry, with a digest or without."""
    if not entry.startswith(node):
        return False
    extra = len(entry) - len(node)
    return extra == 0 or (extra == _DIGEST_LENGTH + 1 and entry[len(node)] == "/")


class DelegationGuard:
    """Checks and extends chains for this node. The entries of its agents are computed once."""

    def __init__(self, node: str = UNNAMED_NODE, max_hops: int = MAX_HOPS) -> None:
        self._node = node
        self._max_hops = max_hops
        self._entries: dict[str, Chain] = {}

    def check(self, chain: MaybeChain, agent_id: str | None) -> None:
        """Raises DelegationRefused."""
        if chain:
            check_chain(chain, self._node, self._max_hops, agent_id)

    def extend(self, chain: MaybeChain, agent_id: str) -> Chain:
        """The chain that goes to this agent. Raises DelegationRefused if the chain contains the agent already."""
        entry_chain = self._entries.get(agent_id) or self._make_entry_chain(agent_id)
        if not chain:
            return entry_chain
        if entry_chain[0] in chain:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, entry_chain[0]])
        return (*chain, entry_chain[0])

    def _make_entry_chain(self, agent_id: str) -> Chain:
        if len(self._entries) >= _CACHE_SIZE * 16:
            self._entries.clear()
        entry_chain = self._entries[agent_id] = (make_chain_entry(self._node, agent_id),)
        return entry_chain


@lru_cache(maxsize=_CACHE_SIZE)
def encode_chain_header(chain: Chain) -> str:
    return ",".join(quote(name, safe="/") for name in chain)


@lru_cache(maxsize=_CACHE_SIZE)
def as_header_and_json(chain: Chain) -> tuple[str, bytes]:
    """For requests that carry the chain both as a header and in the body; one cache lookup gives both."""
    return encode_chain_header(chain), msgspec.json.encode(chain)


def chain_to_headers(chain: MaybeChain) -> dict[str, str]:
    return {DELEGATION_HEADER: encode_chain_header(chain)} if chain else {}


def make_propagation_headers(call: Call, others: Mapping[str, str] = _NO_HEADERS) -> dict[str, str]:
    """HTTP headers with the call's trace and delegation chain, after the `others`."""
    if not call.delegation_chain:
        return {**others, "traceparent": format_traceparent(call.trace)}
    return {
        **others,
        "traceparent": format_traceparent(call.trace),
        DELEGATION_HEADER: encode_chain_header(call.delegation_chain),
    }


def chain_to_metadata(chain: MaybeChain) -> dict[str, Any]:
    return {DELEGATION_META_KEY: list(chain)} if chain else {}


def chain_to_environment(chain: MaybeChain) -> dict[str, str]:
    return {DELEGATION_VARIABLE: encode_chain_header(chain)} if chain else {}


def chain_from_header(text: str | None) -> MaybeChain:
    """Raises BadInput."""
    if not text:
        return UNSET
    if len(text) > _MAX_HEADER:
        raise _invalid_chain_error(DELEGATION_HEADER)
    return _validate_names((unquote(name.strip()) for name in text.split(",") if name.strip()), DELEGATION_HEADER)


def chain_from_metadata(value: Any) -> MaybeChain:
    """From the decoded value of `DELEGATION_META_KEY`; None if it is missing. Raises BadInput."""
    if value is None:
        return UNSET
    if not isinstance(value, list | tuple):
        raise _invalid_chain_error(DELEGATION_META_KEY)
    return _validate_names(value, DELEGATION_META_KEY)


def pick_longer_chain(first: MaybeChain, second: MaybeChain) -> MaybeChain:
    """The newer of the chains in a message and in its header. Chains only grow, so it is the longer one."""
    if not first or not second:
        return first or second
    return first if len(first) >= len(second) else second


def _validate_names(names: Iterable[Any], source: str) -> MaybeChain:
    chain = tuple(names)
    if len(chain) > _MAX_ENTRIES or not all(_is_valid_name(name) for name in chain):
        raise _invalid_chain_error(source)
    return chain or UNSET


def _is_valid_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


def _invalid_chain_error(source: str) -> BadInput:
    return BadInput(
        f"{source} is not a delegation chain: at most {_MAX_ENTRIES} names of up to {_MAX_NAME} characters each. "
        "Pass on the chain that came with the call, as it is, or none",
        field=source,
    )
