"""Whether the executable is there and answers to its name; asked now and then."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from a2a_fabric.core.errors import AgentOffline, OperatorText
from a2a_fabric.runtimes.process_child import Child, Program

KEPT = 60.0  # seconds for which an answer is good
TIMEOUT = 20.0
_BYTES = 10_000


class Version:
    def __init__(self, program: Program) -> None:
        self._program = replace(program, argv=(*program.argv, "--version"))
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()

    async def check(self) -> None:
        """Raises AgentOffline saying what is wrong."""
        self._program.path()
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._asked_at is None or now - self._asked_at > KEPT:
                await self._ask()
                self._asked_at = now

    async def _ask(self) -> None:
        child = await Child.start(self._program)
        try:
            child.stdin.close()
            async with asyncio.timeout(TIMEOUT):
                said = await child.stdout.read(_BYTES)
                await child.ended.wait()
        except TimeoutError as exc:
            raise AgentOffline(self._program.tell(f"did not tell its version within {TIMEOUT:g} s")) from exc
        finally:
            await child.destroy()
        if child.returncode != 0 or not said.strip():
            told, end = self._program.tell("does not tell its version: "), child.obituary
            raise AgentOffline(OperatorText(told + end, told.public + end.public))
