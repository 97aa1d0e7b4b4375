"""Foreign programs, each a process with an end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LAST_WORDS = 3000
_NO_ADDRESS = "http://127.0.0.1:9"
_HERE = "127.0.0.1,localhost"
# It has no listener: whatever a program wants from elsewhere, it does not get.
NOWHERE = {"HTTP_PROXY": _NO_ADDRESS, "HTTPS_PROXY": _NO_ADDRESS, "NO_PROXY": _HERE, "no_proxy": _HERE}


class CommandFailed(Exception):
    """It could not be started, did not end in time, or says that it failed."""


@dataclass(frozen=True)
class Said:
    code: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        return (self.stdout + self.stderr)[-_LAST_WORDS:]


async def run(
    words: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    may_fail: bool = False,
) -> Said:
    """Raises CommandFailed. Without `env` it has ours."""
    name = " ".join(words[:4])
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**(os.environ if env is None else env), "NO_COLOR": "1"},
            cwd=cwd,
        )
    except OSError as exc:
        raise CommandFailed(f"{name} cannot be started: {exc}") from exc
    try:
        async with asyncio.timeout(seconds):
            stdout, stderr = await process.communicate()
    except TimeoutError as exc:
        raise CommandFailed(f"{name} did not end within {seconds:g} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = Said(process.returncode or 0, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
    if said.code and not may_fail:
        raise CommandFailed(f"{name} failed:\n{said.last_words}")
    return said
