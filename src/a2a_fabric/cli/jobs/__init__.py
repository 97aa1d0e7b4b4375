"""`a2a-fabric jobs`"""

from __future__ import annotations

from typing import ClassVar

from a2a_fabric.cli.table import Commands, Row

__all__ = ["GROUP", "run"]


class Jobs(Commands):
    default = "list"
    table: ClassVar = {
        "list": Row("a2a_fabric.cli.jobs.list", "List your jobs, newest first."),
        "show": Row("a2a_fabric.cli.jobs.show", "Show a job, its log and its result."),
        "follow": Row("a2a_fabric.cli.jobs.follow", "Watch a job until it ends; Ctrl-C leaves it alone."),
        "answer": Row("a2a_fabric.cli.jobs.answer", "Answer what a job's agent wants to know, so that it goes on."),
        "cancel": Row("a2a_fabric.cli.jobs.cancel", "Cancel jobs; their agents are told."),
        "retry": Row("a2a_fabric.cli.jobs.retry", "Run an ended job's call again, as a new job."),
        "prune": Row("a2a_fabric.cli.jobs.prune", "Remove ended jobs from the store."),
    }


GROUP = Jobs


def run() -> None:
    """List, follow, answer, cancel and repeat jobs.

    A job is a call that the node has written down: it outlives connections and restarts.

    Example: a2a-fabric jobs --state running
    """
