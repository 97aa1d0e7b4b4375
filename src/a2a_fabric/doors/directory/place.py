"""The addresses of the door: what each stands for, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.methods import Methods
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings
from a2a_fabric.doors.doorkeeper import Doorkeeper, base_of
from a2a_fabric.doors.http import Head


@dataclass(frozen=True, kw_only=True)
class Address:
    """What a path stands for: the method of bare bodies, that of a GET and what it is asked with, and whose it is."""

    method: str | None = None
    page: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    agent_id: str | None = None
    takes_posts: bool = True

    @property
    def verbs(self) -> str:
        return ", ".join(["POST"] * self.takes_posts + ["GET"] * (self.page is not None))


@dataclass(frozen=True, kw_only=True)
class Place:
    """What all addresses of the door have in common."""

    context: DoorContext
    methods: Methods
    identify: Doorkeeper
    settings: DirectoryDoorSettings

    def base_of(self, scope: Any, head: Head) -> str:
        """Where this caller reaches us."""
        return base_of(self.context.public_url, scope, head)
