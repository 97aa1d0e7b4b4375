"""Whether the NATS server lets this node do what a mesh needs: the size of messages, and the rights of its user.

A server answers nothing to a client that lacks a right. It only reports the subject as an error of the connection, so
without this module calls would wait for their deadlines."""

from __future__ import annotations

import logging
from typing import Any, Literal

_log = logging.getLogger(__name__)
_LARGEST_MESSAGE = 256 * 1024  # a piece of a body, and the head of a request
_RETRY_SECONDS = 5.0

Action = Literal["publish", "subscription"]


def describe_small_payload(server_info: dict[str, Any]) -> str | None:
    """Why messages of nodes do not fit; None if they do."""
    size = int(server_info.get("max_payload", 0))
    if size >= _LARGEST_MESSAGE:
        return None
    return (
        f"NATS takes messages of {size} bytes only, and nodes send up to {_LARGEST_MESSAGE}. Set `max_payload` of the "
        f"server to {_LARGEST_MESSAGE} or more; 1 MB is usual"
    )


class MissingRights:
    """Each is logged once, and tried again after a while."""

    def __init__(self, prefix: str) -> None:
        """All subjects of the mesh begin with `prefix`."""
        self._prefix = prefix
        self._missing: set[tuple[Action, str]] = set()
        self._told: set[tuple[Action, str]] = set()
        self._retry_at = 0.0

    @property
    def problem(self) -> str | None:
        return self._describe(*min(self._missing)) if self._missing else None

    def note(self, action: Action, subject: str, now: float) -> str:
        """Why it was refused."""
        if not self._missing:
            self._retry_at = now + _RETRY_SECONDS
        self._missing.add((action, subject))
        sentence = self._describe(action, subject)
        if (action, subject) not in self._told:
            self._told.add((action, subject))
            _log.error("%s", sentence)
        return sentence

    def take_due(self, now: float) -> set[tuple[Action, str]]:
        """What to try again now. It counts as granted until it is refused again."""
        if not self._missing or now < self._retry_at:
            return set()
        due, self._missing = self._missing, set()
        return due

    def _describe(self, action: Action, subject: str) -> str:
        verb = "publish" if action == "publish" else "subscribe"
        return (
            f"NATS does not let the user of this node {verb} to {subject}. "
            f"Grant it to publish and to subscribe to {self._prefix}.>"
        )
