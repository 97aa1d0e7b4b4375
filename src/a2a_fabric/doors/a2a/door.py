"""Puts the A2A door together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.modules import load
from a2a_fabric.doors.a2a.beginning import Beginning
from a2a_fabric.doors.a2a.card import Offer
from a2a_fabric.doors.a2a.cards import Cards, Signer
from a2a_fabric.doors.a2a.entrance import Entrance
from a2a_fabric.doors.a2a.house import House
from a2a_fabric.doors.a2a.listing import Listing
from a2a_fabric.doors.a2a.operations import Operations
from a2a_fabric.doors.a2a.paths import A2ARoute
from a2a_fabric.doors.a2a.push import PushDesk
from a2a_fabric.doors.a2a.quick import Quick
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.tasks import Tasks
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.doors.doorkeeper import Doorkeeper

_GRPC = "a2a_fabric.doors.a2a.grpc_server"
_SIGNING = "a2a_fabric.doors.a2a.signing"


class Calling:
    """Where gRPC listens, once it does."""

    def __init__(self, told: str | None) -> None:
        self.address: str | None = None
        self._told = told

    def __call__(self) -> str | None:
        return self._told if self._told is not None and self.address is not None else self.address


def build(settings: A2ADoorSettings, context: DoorContext) -> Door:
    gateway, desk = context.gateway, context.jobs
    calling = Calling(settings.public_grpc)
    push = PushDesk(desk, settings.push_secret, settings.max_push_configs, context.subscriptions)
    beginning = Beginning(gateway, desk, settings.replay_seconds)
    tasks = Tasks(desk, beginning, settings)
    offer = Offer(
        push=push.is_supported,
        needs_key=not Doorkeeper(context.identify, None).is_open,
        has_old=settings.version_0_3,
        issuers=context.issuers,
    )
    operations = Operations(
        gateway=gateway,
        tasks=tasks,
        quick=Quick(gateway, desk, beginning, tasks, settings),
        listing=Listing(desk),
        cards=Cards(gateway, offer, calling, _signer(settings)),
        push=push,
    )
    house = House(context, operations, settings)
    return Door(routes=[A2ARoute(Entrance(house))], lifetime=_lifetime(house, push, calling))


@asynccontextmanager
async def _lifetime(house: House, push: PushDesk, calling: Calling) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if push.is_supported:
            await stack.enter_async_context(push.orders)
        if house.settings.grpc is not None:
            server = _over_grpc().serving(house, house.settings.grpc)
            calling.address = await stack.enter_async_context(server)
        yield


def _signer(settings: A2ADoorSettings) -> Signer | None:
    if settings.signing is None:
        return None
    signer: Signer = load(_SIGNING).signer(settings.signing)  # with its cryptography, for whoever wants it
    return signer


def _over_grpc() -> Any:
    """Raises ConfigError."""
    try:
        return load(_GRPC)
    except ImportError as exc:
        raise ConfigError(f"doors: a2a: {exc}; install it with: pip install 'a2a-fabric[grpc]'") from exc


build.settings = A2ADoorSettings  # type: ignore[attr-defined]  # how the composition root decodes our table
