"""The agents that the runtimes are measured with: those of the matrix, in a process of their own.

The first line on stdout is a JSON object of manifests by name; the agents end with stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from tests.fixtures.environments import NotInstalled
from tests.matrix.agents import RUNTIMES


async def main(names: list[str]) -> None:
    async with AsyncExitStack() as stack:
        told: dict[str, object] = {}
        for name in names:
            if name not in RUNTIMES:
                continue
            try:
                started = await stack.enter_async_context(RUNTIMES[name].started())
            except NotInstalled as exc:
                told[name] = str(exc)
            else:
                told[name] = started.manifests[0]
        print(json.dumps(told), flush=True)
        await asyncio.to_thread(_stdin_ends)


def _stdin_ends() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
