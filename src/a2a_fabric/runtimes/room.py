"""How much an agent may say in one stream."""

from __future__ import annotations

from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.events import Event


class Room:
    """For the words of a stream, up to a limit: an agent that never stops is stopped."""

    __slots__ = ("_left",)

    def __init__(self, limit: int) -> None:
        self._left = limit

    def check(self, event: Event) -> Event:
        """Raises UpstreamRefused when there is none left."""
        if event.kind == "token":
            self._left -= len(str(event.data.get("text", "")))
            if self._left < 0:
                raise UpstreamRefused("The agent's stream is larger than this node takes")
        return event
