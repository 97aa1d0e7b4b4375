"""The job options of `call --async`, and times and durations as people write them on the command line."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from a2a_fabric.core.errors import suggest_nearest

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(span: str, hint: str) -> float:
    """`30d`, `12h`, `90m`, `5s`. Raises BadParameter, which names the option by `hint`."""
    match = _DURATION.fullmatch(span.strip())
    if match is None:
        raise typer.BadParameter(f"'{span}' is no span of time such as 7d or 12h", param_hint=hint)
    return float(match[1]) * _SECONDS[match[2]]


def parse_time(text: str, hint: str) -> float:
    """`2026-11-16T18:00` (of this machine's clock unless it names a zone), or a span from now. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        pass
    if _DURATION.fullmatch(text.strip().removeprefix("+")):
        return time.time() + parse_duration(text.strip().removeprefix("+"), hint)
    raise typer.BadParameter(f"'{text}' is no moment such as 2026-11-16T18:00, nor a span such as 10m", param_hint=hint)


PRIORITIES = ("low", "normal", "high", "urgent")


def _check_priority(priority: str | None) -> str | None:
    """Raises BadParameter."""
    if priority is not None and priority not in PRIORITIES:
        raise typer.BadParameter(
            f"'{priority}' is none of {', '.join(PRIORITIES)}{suggest_nearest(priority, PRIORITIES)}"
        )
    return priority


JobKey = Annotated[str | None, typer.Option(metavar="KEY", help="With --async: the same key again is the same job.")]
Priority = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help=f"With --async: {', '.join(PRIORITIES)}.",
        autocompletion=lambda: list(PRIORITIES),
        callback=_check_priority,
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


def read_job_options(
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
    values = {"--key": key, "--priority": priority, "--run-at": run_at, "--expires": expires, "--ttl": ttl,
             "--webhook": webhook}  # fmt: skip
    for option, value in values.items():
        if value is not None and not as_job:
            raise typer.BadParameter("only with --async", param_hint=option)
    if expires is not None and ttl is not None:
        raise typer.BadParameter("say it once: --ttl is counted from now", param_hint="--expires")
    options: dict[str, Any] = {
        "idempotency_key": key,
        "priority": priority,
        "run_at": None if run_at is None else parse_time(run_at, "--run-at"),
        "expires_at": None if expires is None else parse_time(expires, "--expires"),
        "ttl_ms": None if ttl is None else max(1, round(parse_duration(ttl, "--ttl") * 1000)),
        "webhook": None if webhook is None else {"url": webhook},
    }
    return {name: value for name, value in options.items() if value is not None}
