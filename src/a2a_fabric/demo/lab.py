"""lab, another Fabric node with an agent of its own, which rolls dice: here it is `lab/dice`."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.app import Fabric
from a2a_fabric.config import AuthSettings, Config

_DICE = re.compile(r"\s*(\d{0,3})\s*[dDwW]\s*(\d{1,4})\s*(?:([+-])\s*(\d{1,6}))?\s*")

dice = Agent("dice", description="Rolls dice.", version="1.0.0", tags=["demo", "chance"])


@dice.capability
def roll(dice: str) -> dict[str, Any]:
    """Roll dice, written like 2d6 or 3d20+4."""
    found = _DICE.fullmatch(dice)
    count, sides = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if found is None or not count or not sides:
        raise ValueError(f"'{dice[:40]}' is no roll; write it like 2d6 or 3d20+4")
    more = int(f"{found[3]}{found[4]}") if found[3] else 0
    rolls = [1 + secrets.randbelow(sides) for _ in range(count)]
    return {"answer": str(sum(rolls) + more), "rolls": rolls}


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Any]:
    """Open to all of this machine, as all agents of the demo are."""
    config = Config(node_id="lab", store="memory:", auth=AuthSettings(anonymous=True), doors=({"kind": "fabric"},))
    async with Fabric(config, agents=[dice], sources=[]) as node:
        yield node.app
