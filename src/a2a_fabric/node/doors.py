"""The doors of a node, and the web application that mounts them beside the node's own pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric import plugins
from a2a_fabric.console.pages import ConsolePages
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.node_health import NodeHealth
from a2a_fabric.doors.api_docs import DoorDescription
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.logins.pages import LoginPages
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.node.agents import AgentParts
from a2a_fabric.node.calls import CallParts
from a2a_fabric.node.context import NodeContext, resolve_tls_files
from a2a_fabric.node.identity import Authentication, LazyNodeKeys
from a2a_fabric.node.runtimes import RuntimeParts
from a2a_fabric.operations import Operations
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.web.api_docs import describe_node
from a2a_fabric.web.asgi import WebApp
from a2a_fabric.web.identity_middleware import make_jwks_route


class DoorParts:
    def __init__(
        self,
        context: NodeContext,
        authentication: Authentication,
        node_keys: LazyNodeKeys,
        runtimes: RuntimeParts,
        calls: CallParts,
        operations: Operations,
        jobs: Jobs,
        messages: Messages,
        inboxes: Inboxes,
    ) -> None:
        """Raises ConfigError."""
        self._context = context
        self._authentication = authentication
        self._node_keys = node_keys
        self._runtimes = runtimes
        self._calls = calls
        self._operations = operations
        self._jobs, self._messages, self._inboxes = jobs, messages, inboxes
        # Separate, so that long streams take no connections from calls.
        self.tunnel_client = OutboundClient(when_full="open")
        context.stack.push_async_callback(self.tunnel_client.aclose)
        context.stack.push_async_callback(authentication.aclose)
        authentication.build_resolver(context.telemetry.metrics.count_auth_attempt, context.store)
        self._console: ConsolePages | None = None
        self.doors = [self._build_door(dict(table)) for table in context.config.doors]

    def make_room(self, owner: str, held: int) -> bool:
        """Close a session for a caller who has `held` and opens one more in another process of the node."""
        return any(door.make_room(owner, held) for door in self.doors if door.make_room is not None)

    def build_app(
        self,
        agents: AgentParts,
        node_health: NodeHealth,
        stops: Sequence[Callable[[], None]],
        console: ConsolePages | None,
    ) -> WebApp:
        """`stops` end what would keep requests open when the node stops."""
        context, config, peers = self._context, self._context.config, self._context.peers
        body_limit = context.limits.body
        self._console = console
        return WebApp(
            self.doors,
            stops,
            context.callbacks,
            body_limit,
            self._authentication.build_token_middleware(),
            node_health,
            [view.name for view in config.views],
            [
                *LoginPages(agents.logins, config.node_id).routes,
                make_jwks_route(self._node_keys.list_public),
                *(() if console is None else console.routes),
            ],
            self._authentication.build_identity_middleware(body_limit),
            None if peers is None else peers.build_relay(agents.find, body_limit),
            None if console is None else console.render_greeting,
            {} if peers is None else peers.endpoints,
        )

    def _build_door(self, table: dict[str, Any]) -> Door:
        kind = table.pop("kind", None)
        if not isinstance(kind, str):
            raise ConfigError("doors: each entry needs a `kind`")
        plugin = plugins.load_door(kind)
        try:
            settings = msgspec.convert(table, plugin.settings)
        except msgspec.ValidationError as exc:
            raise ConfigError(f"doors: {kind}: {exc}") from exc
        door: Door = plugin.build(settings, self._build_context(kind))
        return door

    def _build_context(self, kind: str) -> DoorContext:
        context, config, limits = self._context, self._context.config, self._context.limits
        peers = context.peers
        render_metrics: Callable[[], Awaitable[bytes]] = context.telemetry.metrics.render_exposition
        if peers is not None:
            render_metrics = peers.merge_metrics(render_metrics)
        entry = self._authentication.build_entry(plugins.canonical_kind(kind), context.policy)
        resolver = self._authentication.resolver
        return DoorContext(
            gateway=self._calls.gateway,
            operations=self._operations,
            identify=entry.identify,
            narrow_to_views=entry.narrow,
            verify_credentials=resolver.verify_token,
            add_credentials=entry.add_credentials,
            admits_anonymous=lambda: resolver.admits_anonymous,
            list_issuers=self._authentication.list_issuers,
            log=context.telemetry.log_request,
            acquire_stream=self._open_stream,
            release_stream=self._close_stream,
            streams=limits.streams,
            subscriptions=limits.subscriptions,
            followed_jobs=limits.followed_jobs,
            failed_attempts=limits.failed_attempts,
            caller_share=limits.caller_share,
            counts=limits.counts,
            make_room_elsewhere=None if peers is None or peers.workers is None else peers.workers.make_room,
            body_limit=limits.body,
            metrics=render_metrics if config.metrics else None,
            tunnel=self._runtimes.find_tunnel,
            proxy_steps=self._calls.proxy_steps,
            http=self.tunnel_client,
            find_client=self._runtimes.factory.find_tunnel_client,
            sign_trace=self._node_keys.sign_trace,
            resource_providers=self._runtimes.prompts_and_resources,
            public_url=config.public_url,
            door_kinds=frozenset(plugins.canonical_kind(str(each.get("kind"))) for each in config.doors),
            describe_doors=self._describe_doors,
            jobs=self._jobs,
            messages=self._messages,
            inboxes=self._inboxes,
            tls=resolve_tls_files(context.base, config),
            is_serving=context.is_serving,
            owner_tag=context.owner_tag,
            session_file=context.session_file,
        )

    def _describe_doors(self) -> list[DoorDescription]:
        return [
            *(door.describe() for door in self.doors if door.describe is not None),
            describe_node(has_issuers=bool(self._authentication.list_issuers())),
            *(() if self._console is None else (self._console.describe(),)),
        ]

    def _open_stream(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        self._context.limits.streams.acquire(principal_id)
        self._context.telemetry.metrics.count_stream_opened()

    def _close_stream(self, principal_id: str | None) -> None:
        self._context.limits.streams.release(principal_id)
        self._context.telemetry.metrics.count_stream_closed()
