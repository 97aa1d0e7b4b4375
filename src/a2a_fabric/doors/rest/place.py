"""What all addresses of the door have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.doorkeeper import Doorkeeper, base_of
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.rest.allowance import Allowance
from a2a_fabric.doors.rest.settings import RestDoorSettings


@dataclass(frozen=True, kw_only=True)
class Place:
    context: DoorContext
    identify: Doorkeeper
    allowance: Allowance
    settings: RestDoorSettings

    def base_of(self, scope: Any, head: Head) -> str:
        """Where this caller reaches us."""
        return base_of(self.context.public_url, scope, head)
