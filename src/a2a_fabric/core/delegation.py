"""Which nodes and agents a call has passed, so that work which comes back to where it was is noticed and ends there.

Each node adds an entry before it asks an agent: its own name and a mark of that agent,
`NODE/MARK`. A mark is a digest, because the chain goes to strangers, who need not learn
what agents are called. Entries of older nodes are names without a mark.

What holds of every call that a node lets pass (`check_chain`):

- The node does not stand in the chain before the entries at its end: work that has left
  a node for another one never comes back to it.
- The entries at the end may be the node's own: its agents may call it for one another.
  None of them is for the agent that is asked now: no agent of a node is asked twice.
- The chain has fewer than `most` entries.

A chain only ever refuses. It is the caller's word and allows nothing, so one that is
made up costs its author a call and nobody else anything.
"""

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
from a2a_fabric.core.trace import new_id, traceparent

UNNAMED = "local"  # the name of every node that was given none
MOST = 8
HEADER = "x-fabric-delegation"  # of HTTP, and of gRPC's metadata
HEADER_BYTES = HEADER.encode()
META_KEY = "a2a-fabric/delegation_chain"  # in the metadata of A2A, MCP and the Agent Client Protocol
VARIABLE = "FABRIC_DELEGATION_CHAIN"  # in the environment of a program, written as in the header

_LONGEST = 64  # entries that are read; nobody may have passed more
_LONGEST_NAME = 256  # characters
_LONGEST_HEADER = 16 * 1024
_MARK = 12  # hexadecimal digits
_CHAINS_KEPT = 1024
_NO_HEADERS: Mapping[str, str] = {}

Chain = tuple[str, ...]
MaybeChain = Chain | UnsetType
GivenChain = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)], ...], Meta(max_length=_LONGEST)
]


def chain_name(node_id: str) -> str:
    """What a node is called in a chain: its own name, or one that is made up for as long as it runs."""
    return node_id if node_id != UNNAMED else f"{UNNAMED}-{new_id()[:8]}"


def entry_of(node: str, agent_id: str) -> str:
    """What a node adds to a chain before it asks this agent."""
    mark = hashlib.sha256(f"{node}\0{agent_id}".encode()).hexdigest()[:_MARK]
    return f"{node}/{mark}"


def check_chain(chain: Sequence[str], node: str, most: int, agent_id: str | None = None) -> None:
    """Raises DelegationRefused if the work has left this node before, comes back for an agent that has been asked
    already, or has passed too many.
    """
    own = len(chain)
    while own and _is_of(chain[own - 1], node):
        own -= 1
    if any(_is_of(entry, node) for entry in chain[:own]):
        raise DelegationRefused(f"The call has passed node '{node}' already", "LOOP", [*chain, node])
    if agent_id is not None and own < len(chain):
        entry = entry_of(node, agent_id)
        if entry in chain[own:]:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, entry])
    if len(chain) >= most:
        raise DelegationRefused(f"The call has passed {len(chain)} nodes, and {most} is the most", "DEPTH", chain)


def _is_of(entry: str, node: str) -> bool:
    """Whether an entry was added by this node, with a mark or without."""
    if not entry.startswith(node):
        return False
    rest = len(entry) - len(node)
    return rest == 0 or (rest == _MARK + 1 and entry[len(node)] == "/")


class Delegations:
    """This node's part in chains. The entries of its agents are worked out once."""

    def __init__(self, node: str = UNNAMED, most: int = MOST) -> None:
        self._node = node
        self._most = most
        self._entries: dict[str, Chain] = {}

    def check(self, chain: MaybeChain, agent_id: str | None) -> None:
        """Raises DelegationRefused."""
        if chain:
            check_chain(chain, self._node, self._most, agent_id)

    def extended(self, chain: MaybeChain, agent_id: str) -> Chain:
        """The chain that goes to this agent. Raises DelegationRefused if the agent stands in it already."""
        own = self._entries.get(agent_id) or self._entry(agent_id)
        if not chain:
            return own
        if own[0] in chain:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, own[0]])
        return (*chain, own[0])

    def _entry(self, agent_id: str) -> Chain:
        if len(self._entries) >= _CHAINS_KEPT * 16:
            self._entries.clear()
        entry = self._entries[agent_id] = (entry_of(self._node, agent_id),)
        return entry


@lru_cache(maxsize=_CHAINS_KEPT)
def as_header(chain: Chain) -> str:
    return ",".join(quote(name, safe="/") for name in chain)


@lru_cache(maxsize=_CHAINS_KEPT)
def as_header_and_json(chain: Chain) -> tuple[str, bytes]:
    """For requests that carry it twice, in their head and in their body; found with one look."""
    return as_header(chain), msgspec.json.encode(chain)


def in_headers(chain: MaybeChain) -> dict[str, str]:
    return {HEADER: as_header(chain)} if chain else {}


def journey_headers(call: Call, others: Mapping[str, str] = _NO_HEADERS) -> dict[str, str]:
    """Where a call comes from, as HTTP headers, after those that there are: its trace, and what it has passed."""
    if not call.delegation_chain:
        return {**others, "traceparent": traceparent(call.trace)}
    return {**others, "traceparent": traceparent(call.trace), HEADER: as_header(call.delegation_chain)}


def in_metadata(chain: MaybeChain) -> dict[str, Any]:
    return {META_KEY: list(chain)} if chain else {}


def in_environment(chain: MaybeChain) -> dict[str, str]:
    return {VARIABLE: as_header(chain)} if chain else {}


def from_header(text: str | None) -> MaybeChain:
    """Raises BadInput."""
    if not text:
        return UNSET
    if len(text) > _LONGEST_HEADER:
        raise _no_chain(HEADER)
    return _checked((unquote(name.strip()) for name in text.split(",") if name.strip()), HEADER)


def from_metadata(given: Any) -> MaybeChain:
    """What stands under `META_KEY`, decoded; None if nothing does. Raises BadInput."""
    if given is None:
        return UNSET
    if not isinstance(given, list | tuple):
        raise _no_chain(META_KEY)
    return _checked(given, META_KEY)


def longer(one: MaybeChain, other: MaybeChain) -> MaybeChain:
    """Of the chains in a message and in its head. Chains only grow, so the longer one is the newer."""
    if not one or not other:
        return one or other
    return one if len(one) >= len(other) else other


def _checked(names: Iterable[Any], where: str) -> MaybeChain:
    chain = tuple(names)
    if len(chain) > _LONGEST or not all(_is_name(name) for name in chain):
        raise _no_chain(where)
    return chain or UNSET


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()


def _no_chain(where: str) -> BadInput:
    return BadInput(
        f"{where} is no delegation chain: at most {_LONGEST} names of up to {_LONGEST_NAME} characters each. "
        "Pass on the chain that came with the call, as it is, or none",
        field=where,
    )
