"""Runtime of an agent whose manifest names none: found out at its first use, then replaced by the right one.

Nothing is asked when the node starts. An address where nobody is makes the agent
offline, and it is asked again the next time; one that answers with nothing that
is recognised is taken for what it is by default. So is one that does not answer, but
not at once: it may just be starting, and whatever it is taken for, it remains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.probing.asking import Unanswered
from a2a_fabric.probing.findings import Finding

_log = logging.getLogger(__name__)
_SILENCES = 3  # until it is believed
_PLAIN = frozenset({"uri", "transport", "headers"})


def may_be_anything(manifest: Manifest) -> bool:
    """Whether the manifest leaves open what speaks at its address: any option is one runtime's own."""
    uri = manifest.endpoint.get("uri")
    is_address = isinstance(uri, str) and uri.startswith(("http://", "https://"))
    return manifest.runtime is None and is_address and manifest.endpoint.keys() <= _PLAIN


def as_found(manifest: Manifest, found: Finding) -> Manifest:
    kept = {name: value for name, value in manifest.endpoint.items() if name != "uri"}
    return replace(manifest, runtime=found.runtime, endpoint={**kept, **found.endpoint})


class GuessingRuntime:
    """`default` is used if nothing is recognised.

    `settled` hears once which runtime is right and of what kind (None: the default), and says whether it takes it over.
    """

    def __init__(
        self,
        manifest: Manifest,
        default: Runtime,
        guess: Callable[[], Awaitable[Finding | None]],
        build: Callable[[Manifest], Runtime],
        settled: Callable[[str, Runtime, Runtime, str | None], bool],
    ) -> None:
        self._manifest = manifest
        self._default = default
        self._guess = guess
        self._build = build
        self._settled = settled
        self._right: Runtime | None = None
        self._owned: list[Runtime] = [default]
        self._finding: asyncio.Task[Runtime] | None = None
        self._silences = 0

    async def __call__(self, call: Call, emit: Emit) -> Result:
        return await (await self._runtime())(call, emit)

    async def health(self) -> Status:
        return await (await self._runtime()).health()

    async def describe(self) -> Manifest:
        return await (await self._runtime()).describe()

    async def aclose(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        owned, self._owned = self._owned, []
        for runtime in owned:
            await runtime.aclose()

    async def _runtime(self) -> Runtime:
        """All who come meanwhile wait for one answer. Raises AgentOffline if nobody is there, or answers yet."""
        if self._right is not None:
            return self._right
        if self._finding is None or self._finding.done():
            self._finding = asyncio.ensure_future(self._found())
            self._finding.add_done_callback(_heard)
        return await asyncio.shield(self._finding)

    async def _found(self) -> Runtime:
        found = await self._answer()
        right = None if found is None or found.is_plain else self._built(found)
        self._right = right or self._default
        kind = None if found is None or right is None else found.runtime
        if self._settled(self._manifest.agent_id, self, self._right, kind):
            self._owned = [each for each in self._owned if each is not self._right]
        return self._right

    async def _answer(self) -> Finding | None:
        try:
            return await self._guess()
        except Unanswered as exc:
            self._silences += 1
            if self._silences < _SILENCES:
                why = f"It has not said yet what it is: {exc}"
                raise AgentOffline(why, agent_id=self._manifest.agent_id) from exc
            return None

    def _built(self, found: Finding) -> Runtime | None:
        """None if its runtime does not take what else the manifest says."""
        agent_id = self._manifest.agent_id
        try:
            right = self._build(as_found(self._manifest, found))
        except FabricError as error:
            _log.warning("agent %s: %s, but it cannot be used so: %s", agent_id, found.told, error.sentence)
            return None
        _log.info("agent %s: %s", agent_id, found.told)
        self._owned.append(right)
        return right


def _heard(finding: asyncio.Task[Runtime]) -> None:
    """Whoever waited may be gone by the time that it fails."""
    if not finding.cancelled():
        finding.exception()
