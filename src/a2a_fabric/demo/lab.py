"""lab, another Fabric node. Its agent rolls dice, and has the id `lab/dice` on this node."""

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
    match = _DICE.fullmatch(dice)
    count, sides = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if match is None or not count or not sides:
        raise ValueError(f"'{dice[:40]}' is not a roll of dice. Write it like 2d6 or 3d20+4")
    bonus = int(f"{match[3]}{match[4]}") if match[3] else 0
    rolls = [1 + secrets.randbelow(sides) for _ in range(count)]
    return {"answer": str(sum(rolls) + bonus), "rolls": rolls}


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    """Serve without authentication on this machine, like all demo agents."""
    config = Config(node_id="lab", store="memory:", auth=AuthSettings(anonymous=True), doors=({"kind": "fabric"},))
    async with Fabric(config, agents=[dice], sources=[]) as node:
        yield node.app
