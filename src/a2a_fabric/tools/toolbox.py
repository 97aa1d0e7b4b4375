"""What the handlers of the tools may use; nothing else of the node is within their reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.tools.sandbox import Sandbox
from a2a_fabric.tools.settings import ToolSettings


class Toolbox:
    def __init__(
        self,
        settings: ToolSettings,
        base: Path,
        web: HTTPClient,
        environ: Mapping[str, str],
        threads: WorkerThreads | None = None,
    ) -> None:
        self.settings = settings
        self.files = Sandbox((base / settings.io_root).resolve())
        self.web = web  # guarded by whoever built it, who also closes it
        self.environ = environ
        self.threads = threads  # belong to whoever built them
