"""Which nodes a call has passed, so that work which comes back to where it was is noticed and ends there.

The chain names nodes, the first one first; each node adds itself before it asks an
agent. A node whose own agents call it back stands at the chain's end: that is no
loop, but it counts, so that two agents cannot play ball for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

from a2a_fabric.core.errors import DelegationRefused
from a2a_fabric.core.trace import new_id

UNNAMED = "local"  # the name of every node that was given none
MOST = 8
HEADER = "x-fabric-delegation"  # for protocols whose own words have no place for a chain
_LONGEST = 64  # nodes that are read off a header; nobody may have passed more


def chain_name(node_id: str) -> str:
    """What a node is called in a chain: its own name, or one that is made up for as long as it runs."""
    return node_id if node_id != UNNAMED else f"{UNNAMED}-{new_id()[:8]}"


def check_chain(chain: Sequence[str], node: str, most: int) -> None:
    """Raises DelegationRefused if the work has left this node before, or has passed too many."""
    before = list(chain)
    while before and before[-1] == node:
        before.pop()
    if node in before:
        raise DelegationRefused(f"The call has passed node '{node}' already", "LOOP", [*chain, node])
    if len(chain) >= most:
        raise DelegationRefused(f"The call has passed {len(chain)} nodes, and {most} is the most", "DEPTH", chain)


def as_header(chain: Sequence[str]) -> str:
    return ",".join(quote(name, safe="") for name in chain)


def from_header(text: str) -> tuple[str, ...]:
    return tuple(unquote(name) for name in text.split(",", _LONGEST)[:_LONGEST] if name)
