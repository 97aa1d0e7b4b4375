"""Runs `validator.py` as a program, for schemas and data that may take long: the validator holds the interpreter."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import msgspec

from a2a_fabric.tools import validator
from a2a_fabric.tools.process import run

MAX_OUTPUT = 2_000_000
_MASK = "the value"


class BadSchema(ValueError):
    """The schema cannot be used; the text says why."""


async def find_errors(
    schema: bytes, data: bytes, timeout: float, *, most: int = validator.MAX_ERRORS, mask: str | None = None
) -> list[dict[str, Any]]:
    """The first errors: message, path and schema_path. Raises TimeoutError, and BadSchema."""
    further = msgspec.json.encode({"most": most, "mask": mask})[1:]
    request = b'{"schema":%b,"data":%b,%b' % (schema, data, further)
    program = [sys.executable, "-I", str(Path(validator.__file__))]
    with await _file_of(request) as source:
        outcome = await run(program, cwd=Path("/"), env={}, timeout=timeout, limit=MAX_OUTPUT, stdin=source)
    if outcome.exit_code:
        raise BadSchema("it needs too much memory or never ends")
    answer = msgspec.json.decode(outcome.stdout)
    if "bad_schema" in answer:
        raise BadSchema(answer["bad_schema"])
    errors: list[dict[str, Any]] = answer["errors"]
    return errors


async def find_first_error(schema: bytes, data: bytes, timeout: float, /) -> list[dict[str, Any]]:
    """As `find_errors`, with no value of the data in the message: it is logged."""
    return await find_errors(schema, data, timeout, most=1, mask=_MASK)


async def _file_of(content: bytes) -> IO[bytes]:
    """Written by a thread, which cannot be cancelled: then the file is closed as soon as it is there."""
    writing = asyncio.ensure_future(asyncio.to_thread(_write, content))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(_close)
        raise


def _write(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _close(writing: asyncio.Future[IO[bytes]]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        writing.result().close()
