"""Builds the A2A door: its HTTP route, its optional gRPC server, and the lifetime of both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import DoorPlugin, load_module
from a2a_fabric.doors.a2a.api_docs import describe
from a2a_fabric.doors.a2a.cards import CardCache, CardOptions, CardSigner
from a2a_fabric.doors.a2a.http import A2ARoute, http_endpoint
from a2a_fabric.doors.a2a.operations import A2ADoorState, A2AOperations
from a2a_fabric.doors.a2a.push import A2APushConfigs
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.task_creator import TaskCreator
from a2a_fabric.doors.a2a.task_list import TaskListing
from a2a_fabric.doors.a2a.tasks import A2ATasks, DirectReplies
from a2a_fabric.doors.context import Door, DoorContext

_GRPC_MODULE = "a2a_fabric.doors.a2a.grpc"
_SIGNING_MODULE = "a2a_fabric.doors.a2a.card_signing"


class GrpcAddress:
    """The address of the gRPC server as callers reach it; None until it listens."""

    def __init__(self, public_address: str | None) -> None:
        self.address: str | None = None
        self._public_address = public_address

    def __call__(self) -> str | None:
        return self._public_address if self._public_address is not None and self.address is not None else self.address


def build(settings: A2ADoorSettings, context: DoorContext) -> Door:
    gateway, jobs = context.gateway, context.jobs
    grpc_address = GrpcAddress(settings.public_grpc)
    push = A2APushConfigs(jobs, settings.push_secret, settings.max_push_configs, context.followed_jobs)
    creator = TaskCreator(gateway, jobs, context.operations, settings.replay_seconds)
    tasks = A2ATasks(jobs, creator, settings)

    def read_card_options() -> CardOptions:
        return CardOptions(
            push=push.is_supported,
            needs_key=not context.admits_anonymous(),
            supports_0_3=settings.version_0_3,
            issuers=context.list_issuers(),
        )

    operations = A2AOperations(
        gateway=gateway,
        tasks=tasks,
        direct_replies=DirectReplies(gateway, jobs, creator, tasks, settings),
        task_listing=TaskListing(jobs),
        cards=CardCache(gateway, read_card_options, grpc_address, _load_signer(settings)),
        push_configs=push,
        add_credentials=context.add_credentials,
    )
    state = A2ADoorState(context, operations, settings)
    return Door(
        routes=[A2ARoute(http_endpoint(state))], lifetime=_run_lifetime(state, push, grpc_address), describe=describe
    )


@asynccontextmanager
async def _run_lifetime(state: A2ADoorState, push: A2APushConfigs, grpc_address: GrpcAddress) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if push.is_supported:
            await stack.enter_async_context(push.subscriptions)
        if state.settings.grpc is not None:
            server = _load_extra(_GRPC_MODULE, "grpc").serve_grpc(state, state.settings.grpc)
            grpc_address.address = await stack.enter_async_context(server)
        yield


def _load_signer(settings: A2ADoorSettings) -> CardSigner | None:
    """Raises ConfigError."""
    if settings.signing is None:
        return None
    card_signer: CardSigner = _load_extra(_SIGNING_MODULE, "a2a").build_signer(settings.signing)
    return card_signer


def _load_extra(module: str, extra: str) -> Any:
    """Import what needs libraries beyond the base install. Raises ConfigError."""
    try:
        return load_module(module)
    except ImportError as exc:
        raise ConfigError(f"doors: a2a: {exc}; install it with: pip install 'a2a-fabric[{extra}]'") from exc


plugin = DoorPlugin(settings=A2ADoorSettings, build=build)
