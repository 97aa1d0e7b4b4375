"""Runtime of an agent whose manifest names none: detects the protocol at first use, then hands over to that runtime.

Nothing is probed when the node starts. An unreachable address makes the agent offline, and the next call
probes again. If nothing is recognised, the default runtime is used; if the address does not answer, only
after several attempts, since the agent may still be starting and the choice is final."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.probing.client import ProbeUnanswered
from a2a_fabric.probing.findings import Finding

_log = logging.getLogger(__name__)
_MAX_TIMEOUTS = 3  # then the default runtime is used
_PLAIN_FIELDS = frozenset({"uri", "transport", "headers"})


def needs_detection(manifest: Manifest) -> bool:
    """Whether the manifest leaves the runtime open. Every other option belongs to one runtime, and so decides it."""
    uri = manifest.endpoint.get("uri")
    is_address = isinstance(uri, str) and uri.startswith(("http://", "https://"))
    return manifest.runtime is None and is_address and manifest.endpoint.keys() <= _PLAIN_FIELDS


def manifest_with_finding(manifest: Manifest, finding: Finding) -> Manifest:
    other_fields = {name: value for name, value in manifest.endpoint.items() if name != "uri"}
    return replace(manifest, runtime=finding.runtime, endpoint={**other_fields, **finding.endpoint})


class AutodetectRuntime:
    """`default` is used if nothing is recognised.

    `on_detected` is called once, with the runtime and its kind (None: the default); it returns whether it takes over
    that runtime, and with it the duty to close it.
    """

    def __init__(
        self,
        manifest: Manifest,
        default: Runtime,
        probe: Callable[[], Awaitable[Finding | None]],
        build: Callable[[Manifest], Runtime],
        on_detected: Callable[[str, Runtime, Runtime, str | None], bool],
    ) -> None:
        self._manifest = manifest
        self._default = default
        self._probe = probe
        self._build = build
        self._on_detected = on_detected
        self._detected: Runtime | None = None
        self._owned: list[Runtime] = [default]
        self._detection: asyncio.Task[Runtime] | None = None
        self._timeouts = 0

    async def __call__(self, call: Call, emit: Emit) -> Result:
        return await (await self._get_runtime())(call, emit)

    async def health(self) -> Status:
        return await (await self._get_runtime()).health()

    async def describe(self) -> Manifest:
        return await (await self._get_runtime()).describe()

    async def aclose(self) -> None:
        if self._detection is not None:
            await cancel_and_wait(self._detection)
        owned, self._owned = self._owned, []
        for runtime in owned:
            await runtime.aclose()

    async def _get_runtime(self) -> Runtime:
        """Concurrent callers share one probe. Raises AgentOffline if the address does not answer (yet)."""
        if self._detected is not None:
            return self._detected
        if self._detection is None or self._detection.done():
            self._detection = asyncio.ensure_future(self._detect())
            self._detection.add_done_callback(_consume_exception)
        return await asyncio.shield(self._detection)

    async def _detect(self) -> Runtime:
        finding = await self._run_probe()
        runtime = None if finding is None or finding.is_plain_http else self._build_runtime(finding)
        self._detected = runtime or self._default
        kind = None if finding is None or runtime is None else finding.runtime
        if self._on_detected(self._manifest.agent_id, self, self._detected, kind):
            self._owned = [each for each in self._owned if each is not self._detected]
        return self._detected

    async def _run_probe(self) -> Finding | None:
        try:
            return await self._probe()
        except ProbeUnanswered as exc:
            self._timeouts += 1
            if self._timeouts < _MAX_TIMEOUTS:
                why = f"Its protocol is not known yet: {exc}"
                raise AgentOffline(why, agent_id=self._manifest.agent_id) from exc
            return None

    def _build_runtime(self, finding: Finding) -> Runtime | None:
        """None if the detected runtime does not accept the other fields of the endpoint."""
        agent_id = self._manifest.agent_id
        try:
            runtime = self._build(manifest_with_finding(self._manifest, finding))
        except FabricError as error:
            _log.warning(
                "Agent %s: detected %s, but it cannot be used: %s", agent_id, finding.evidence, error.full_message
            )
            return None
        _log.info("Agent %s: detected %s", agent_id, finding.evidence)
        self._owned.append(runtime)
        return runtime


def _consume_exception(task: asyncio.Task[Runtime]) -> None:
    """Marks the exception as retrieved: every caller may have left before the probe failed."""
    if not task.cancelled():
        task.exception()
