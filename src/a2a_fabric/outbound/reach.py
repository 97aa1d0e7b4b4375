"""Where agents may be that joined at run time: how far depends on the trust of whoever registered them.

The same judgement is made when an agent registers, for a clear refusal, and at every
connection to it: a name may lead somewhere else by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import ConnectFailed, Refused


class Reach:
    def __init__(self, allow: Sequence[str], *, private_for_local: bool) -> None:
        self.far = Guard(allow=allow)
        self.near = Guard(allow_private=private_for_local, allow=allow)

    def guard_for(self, trust: TrustTier) -> Guard:
        return self.near if trust == "local" else self.far

    async def check(self, url: str, trust: TrustTier) -> None:
        """Raises Forbidden for an address that is out of reach, BadInput for none at all."""
        guard = self.guard_for(trust)
        try:
            parsed = guard.check_url(url)
        except Refused as exc:
            raise BadInput(f"The endpoint's uri cannot be used: {exc}", field="endpoint.uri") from exc
        try:
            await guard.addresses(parsed.host, parsed.port)
        except Refused as exc:
            raise Forbidden(
                f"The endpoint is out of reach for registered agents: {exc}. The operator may list it under "
                "`registration.allow`",
                field="endpoint.uri",
            ) from exc
        except ConnectFailed as exc:
            raise BadInput(f"The endpoint's uri cannot be used: {exc}", field="endpoint.uri") from exc
