"""Ids of agents: any text in the document, a plain name everywhere else.

An id that is no plain name is kept with the agent, and everything in the house
calls the agent by a name made of it. So ids with slashes and spaces can be
registered, found, and reached at an address.
"""

from __future__ import annotations

import hashlib
import re

from a2a_fabric.core.agent import AGENT_ID_PATTERN, Manifest

KEY = "directory_id"  # in the metadata
LONGEST = 256

_PLAIN = re.compile(AGENT_ID_PATTERN)
_LONGEST_PLAIN = 128
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE = 64


def agent_id_of(given: str) -> str:
    """What the house calls an agent with this id; the same for the same id, wherever it is asked."""
    if len(given) <= _LONGEST_PLAIN and _PLAIN.match(given):
        return given
    readable = _OTHERS.sub("-", given).strip("._-")[:_READABLE] or "agent"
    return f"{readable}-{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def directory_id_of(manifest: Manifest) -> str:
    """The id as it was registered. Metadata is anybody's to write, so it counts only if it leads to this agent."""
    kept = manifest.metadata.get(KEY)
    return kept if isinstance(kept, str) and agent_id_of(kept) == manifest.agent_id else manifest.agent_id
