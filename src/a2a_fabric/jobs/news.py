"""Who is told how jobs come and go, for logs."""

from __future__ import annotations

from typing import Protocol

from a2a_fabric.core.job import JobSummary


class JobNews(Protocol):
    """Called by the engine on every node for what happens there. Must not raise, nor wait."""

    def accepted(self, job: JobSummary) -> None:
        """It is written down."""
        ...

    def left(self, job: JobSummary) -> None:
        """Its holder has left it: ended, parked with a question, or back in the queue."""
        ...


class NoNews:
    def accepted(self, job: JobSummary) -> None:
        pass

    def left(self, job: JobSummary) -> None:
        pass
