"""Runs `validator.py` as a program, for schemas and data that may take long, because the validator holds the GIL."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import msgspec

from a2a_fabric.tools import validator
from a2a_fabric.tools.process import run_program

MAX_OUTPUT = 2_000_000
_MASK = "the value"


async def find_errors(
    schema: bytes, data: bytes, timeout: float, *, most: int = validator.MAX_ERRORS, mask: str | None = None
) -> list[dict[str, Any]]:
    """The first errors: message, path and schema_path. Raises TimeoutError and InvalidSchema."""
    options = msgspec.json.encode({"most": most, "mask": mask})[1:]
    request = b'{"schema":%b,"data":%b,%b' % (schema, data, options)
    program = [sys.executable, "-I", str(Path(validator.__file__))]
    with await _open_temporary_file(request) as source:
        outcome = await run_program(program, cwd=Path("/"), env={}, timeout=timeout, limit=MAX_OUTPUT, stdin=source)
    if outcome.exit_code:
        raise validator.InvalidSchema("it needs too much memory or never ends")
    response = msgspec.json.decode(outcome.stdout)
    if "bad_schema" in response:
        raise validator.InvalidSchema(response["bad_schema"])
    errors: list[dict[str, Any]] = response["errors"]
    return errors


async def find_first_error(schema: bytes, data: bytes, timeout: float, /) -> list[dict[str, Any]]:
    """The first error, with no value of the data in its message, because the message is logged."""
    return await find_errors(schema, data, timeout, most=1, mask=_MASK)


async def _open_temporary_file(content: bytes) -> IO[bytes]:
    """A thread writes the file and cannot be cancelled; if the caller is, the file is closed once it is written."""
    write_task = asyncio.ensure_future(asyncio.to_thread(_write_file, content))
    try:
        return await asyncio.shield(write_task)
    except asyncio.CancelledError:
        write_task.add_done_callback(_close_file)
        raise


def _write_file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _close_file(write_task: asyncio.Future[IO[bytes]]) -> None:
    if not write_task.cancelled() and write_task.exception() is None:
        write_task.result().close()
