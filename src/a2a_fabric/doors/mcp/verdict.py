"""How a tool's call went, read from its reply while that passes by: nothing is held up and little is kept."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.doors.mcp import jsonrpc

_KEPT = 1 << 20  # bytes of one event; of a longer one nobody learns how it went
_ENDS = (b"\n\n", b"\r\n\r\n")


class _Cancelled(UpstreamRefused):
    """The caller said so, and the answer that never came was ended."""

    code = "CANCELLED"


_KINDS: dict[int, type[FabricError]] = {
    jsonrpc.INVALID_PARAMS: BadInput,
    jsonrpc.REQUEST_CANCELLED: _Cancelled,
}


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Result(msgspec.Struct):
    is_error: bool = msgspec.field(name="isError", default=False)


class _Answer(msgspec.Struct):
    result: _Result | None = None
    error: _Error | None = None


class Verdict:
    """`read` takes the reply as it leaves; `error` is what was wrong with it, if anything."""

    def __init__(self) -> None:
        self._is_stream = False
        self._open = b""  # the event, or the whole body, that has not ended yet
        self._last = b""
        self._is_lost = False

    def begin(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream

    def read(self, chunk: bytes) -> None:
        if not chunk or self._is_lost:
            return
        self._open += chunk
        if self._is_stream:
            self._cut()
        if len(self._open) > _KEPT and self._is_stream:
            self._open, self._is_lost = b"", True

    def _cut(self) -> None:
        """Keep the last event that is whole and says something, and what comes after it."""
        end = max(self._open.rfind(mark) + len(mark) if mark in self._open else 0 for mark in _ENDS)
        if end:
            whole, self._open = self._open[:end], self._open[end:]
            start = max(whole.rfind(b"\ndata:"), 0 if whole.startswith(b"data:") else -1)
            if start >= 0:
                self._last = whole[start:].lstrip(b"\n").removeprefix(b"data:").strip()

    @property
    def has_answer(self) -> bool:
        """Whether all of it has left that a caller waits for."""
        answer = self._answer()
        return answer.result is not None or answer.error is not None

    def error(self) -> FabricError | None:
        answer = self._answer()
        if answer.error is not None:
            return _KINDS.get(answer.error.code, UpstreamRefused)(answer.error.message[:500])
        if answer.result is not None and answer.result.is_error:
            return UpstreamRefused("The tool answered with an error")
        return None

    def _answer(self) -> _Answer:
        try:
            return msgspec.json.decode(self._last if self._is_stream else self._open, type=_Answer)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return _Answer()
