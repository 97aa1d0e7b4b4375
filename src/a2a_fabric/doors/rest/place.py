"""What all addresses of the door have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.rest.allowance import Allowance
from a2a_fabric.doors.rest.settings import RestDoorSettings
from a2a_fabric.doors.rest.visit import Doorkeeper

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True, kw_only=True)
class Place:
    context: DoorContext
    identify: Doorkeeper
    allowance: Allowance
    settings: RestDoorSettings

    def base_of(self, scope: Any, head: Head) -> str:
        """Where this caller reaches us."""
        if self.settings.public_url is not None:
            return self.settings.public_url.rstrip("/")
        host = head.get(b"host") or ""
        return f"{scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else 'localhost'}"
