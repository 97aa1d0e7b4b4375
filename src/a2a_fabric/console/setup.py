"""Builds the console of a node: its pages, and its sign-in if the operator has set one up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from a2a_fabric.config import Config
from a2a_fabric.console.pages import ConsolePages
from a2a_fabric.console.sign_in import IssuerClient, SignInPages
from a2a_fabric.core.errors import ConfigError, UpstreamFailed
from a2a_fabric.core.keys import KeyStore
from a2a_fabric.core.ports import load_module
from a2a_fabric.outbound.client import OutboundClient

_SECONDS_PER_HOUR = 3600.0


def build_console(
    get_config: Callable[[], Config], keys: KeyStore, refresh_keys: Callable[[], Awaitable[None]], stack: AsyncExitStack
) -> ConsolePages | None:
    """None if the console is switched off. Raises ConfigError."""
    config = get_config()
    if not config.console.enabled:
        return None
    settings = config.console.sign_in
    loader = ClientLoader(get_config)
    hours = 0.0
    if settings is not None:
        loader.check()
        hours = settings.hours
        stack.push_async_callback(loader.aclose)
    issuer = None if settings is None else settings.issuer
    sign_in = SignInPages(issuer, loader.load, keys, refresh_keys, config.public_url, hours * _SECONDS_PER_HOUR)
    return ConsolePages(sign_in.routes, sign_in.describe)


class ClientLoader:
    """The client of the issuer, made anew when `auth.issuers` changes while the node runs."""

    def __init__(self, get_config: Callable[[], Config]) -> None:
        self._get_config = get_config
        self._http: OutboundClient | None = None
        self._client: Any = None

    def check(self) -> None:
        """Raises ConfigError if the settings of the sign-in do not fit those of `auth`."""
        config = self._get_config()
        # Loaded on demand: most nodes need no cryptography.
        load_module("a2a_fabric.identity.sign_in").check_sign_in(config.console.sign_in, config.auth.issuers)

    def load(self) -> IssuerClient:
        """Raises UpstreamFailed if the issuer is not trusted any longer."""
        config = self._get_config()
        module = load_module("a2a_fabric.identity.sign_in")
        try:
            issuer = module.check_sign_in(config.console.sign_in, config.auth.issuers)
        except ConfigError as exc:
            raise UpstreamFailed(f"Signing in is not possible now: {exc.message}") from exc
        if self._http is None:
            self._http = OutboundClient()  # unguarded: the operator configured this address
        if self._client is None or self._client.issuer != issuer:
            self._client = module.OpenIDClient(config.console.sign_in, issuer, self._http)
        client: IssuerClient = self._client
        return client

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
