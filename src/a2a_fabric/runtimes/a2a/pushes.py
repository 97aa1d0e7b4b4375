"""What an agent tells by itself of the task that it was given: push notifications.

They are taken as a reason to look, and as words on the way; the answer itself is always asked for, over
the line that leads to the agent. So a push that is lost, late, doubled or forged changes no result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.errors import FabricError
from a2a_fabric.runtimes.a2a.refusals import PUSH_NOT_SUPPORTED, reason_of
from a2a_fabric.runtimes.a2a.said import ASKING, ENDED, ArtifactSaid, Said, State, StatusSaid
from a2a_fabric.runtimes.a2a.wire import read_push

_ID = "a2a-fabric"  # the same for all messages to a task, so that the newest address takes the place of the last
_TOLD_WITHIN = 5.0  # seconds, for the name of a task of which we know nothing else
_ON_THE_WAY: frozenset[State] = frozenset({"submitted", "working"})


class PushPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent should send its news. Some agents show the token by one header, some by the other."""

    url: str
    token: str

    def written(self, dialect: Dialect) -> dict[str, Any]:
        schemes = {"scheme": "Bearer"} if dialect == "1.0" else {"schemes": ["Bearer"]}
        return {
            "id": _ID,
            "url": self.url,
            "token": self.token,
            "authentication": {**schemes, "credentials": self.token},
        }


def push_request(place: PushPlace, task_id: str, dialect: Dialect) -> dict[str, Any]:
    """What asks for it afterwards, as the protos have it."""
    written = place.written(dialect)
    if dialect == "1.0":
        return {"taskId": task_id, **written}
    parent = f"tasks/{task_id}"
    name = f"{parent}/pushNotificationConfigs/{_ID}"
    return {"parent": parent, "configId": _ID, "config": {"name": name, "pushNotificationConfig": written}}


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What came at once: words on the way, whether there is something to see, whether the task has ended or asks."""

    words: list[StatusSaid]
    should_look: bool
    is_over: bool


class Pushes:
    """Of one call. `patience` is how long an agent that is silent is left alone; None: not at all."""

    def __init__(self, callback: Callback, patience: float | None, *, is_told: bool) -> None:
        self.place = PushPlace(url=callback.url, token=callback.token)
        self.patience = patience
        self.is_asked = False  # whether the agent knows of the place
        self.get_lost: bool | None = None  # whether the task ended without a word, once we know
        self._callback = callback
        self._is_told = is_told  # whether anybody listens on the way

    async def news(self, task_id: str, within: float) -> AsyncGenerator[News, None]:
        """Of this task, as they come, for so many seconds."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within
        while (left := ends_at - loop.time()) > 0:
            notes = [read_push(note) for note in await self._callback.heard(left)]
            heard = [said for said in notes if _is_of(said, task_id)]
            if heard:
                yield News(
                    words=[said for said in heard if isinstance(said, StatusSaid) and said.state in _ON_THE_WAY],
                    should_look=any(self._is_worth_a_look(said) for said in heard),
                    is_over=any(getattr(said, "state", None) in ENDED | ASKING for said in heard),
                )

    async def task_id(self) -> str:
        """Of the first push, if it comes soon."""
        for note in await self._callback.heard(_TOLD_WITHIN):
            said = read_push(note)
            if said is not None and (found := getattr(said, "task_id", "")):
                return str(found)
        return ""

    def _is_worth_a_look(self, said: Said | None) -> bool:
        if isinstance(said, StatusSaid):
            return said.state not in _ON_THE_WAY
        return self._is_told or not isinstance(said, ArtifactSaid)  # a piece of the answer interests only who listens


def _is_of(said: Said | None, task_id: str) -> bool:
    """What cannot be understood may well be; what names another task is not."""
    return getattr(said, "task_id", "") in ("", task_id)


def is_about_pushing(exc: FabricError) -> bool:
    """Whether a message was refused only because of the address that came with it."""
    return reason_of(exc) == PUSH_NOT_SUPPORTED or "push notification" in exc.message.lower()
