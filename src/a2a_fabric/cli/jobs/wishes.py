"""What a caller may say about a job on the command line, as options of `call --async`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.jobs.moments import moment_of, seconds_of
from a2a_fabric.core.errors import nearest

PRIORITIES = ("low", "normal", "high", "urgent")


def _known_priority(given: str | None) -> str | None:
    """Raises BadParameter."""
    if given is not None and given not in PRIORITIES:
        raise typer.BadParameter(f"'{given}' is none of {', '.join(PRIORITIES)}{nearest(given, PRIORITIES)}")
    return given


Key = Annotated[str | None, typer.Option(metavar="KEY", help="With --async: the same key again is the same job.")]
Priority = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help=f"With --async: {', '.join(PRIORITIES)}.",
        autocompletion=lambda: list(PRIORITIES),
        callback=_known_priority,
    ),
]
RunAt = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="With --async: not before 2026-11-16T18:00, or 10m from now."),
]
Expires = Annotated[
    str | None, typer.Option(metavar="WHEN", help="With --async: if not begun by then, it ends as timeout.")
]
Ttl = Annotated[str | None, typer.Option(metavar="SPAN", help="With --async: the same, counted from now: 90s, 2h.")]
Webhook = Annotated[
    str | None, typer.Option(metavar="URL", help="With --async: told of the end, signed with the node's secret.")
]


def wishes(
    *,
    as_job: bool,
    key: str | None,
    priority: str | None,
    run_at: str | None,
    expires: str | None,
    ttl: str | None,
    webhook: str | None,
) -> dict[str, Any]:
    """The arguments of a call, as far as anything is wished. Raises BadParameter."""
    given = {"--key": key, "--priority": priority, "--run-at": run_at, "--expires": expires, "--ttl": ttl,
             "--webhook": webhook}  # fmt: skip
    for option, value in given.items():
        if value is not None and not as_job:
            raise typer.BadParameter("only with --async", param_hint=option)
    if expires is not None and ttl is not None:
        raise typer.BadParameter("say it once: --ttl is counted from now", param_hint="--expires")
    wished: dict[str, Any] = {
        "idempotency_key": key,
        "priority": priority,
        "run_at": None if run_at is None else moment_of(run_at, "--run-at"),
        "expires_at": None if expires is None else moment_of(expires, "--expires"),
        "ttl_ms": None if ttl is None else max(1, round(seconds_of(ttl, "--ttl") * 1000)),
        "webhook": None if webhook is None else {"url": webhook},
    }
    return {name: value for name, value in wished.items() if value is not None}
