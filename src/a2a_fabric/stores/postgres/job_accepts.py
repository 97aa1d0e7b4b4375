"""Accepting jobs, a group at a time: write all, then see whose key or id was known."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core import lifecycle
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import Accepted, JobSummary
from a2a_fabric.stores.postgres.errors import Again
from a2a_fabric.stores.postgres.job_writes import Acceptance, Known, find_known, insert_jobs
from a2a_fabric.stores.postgres.transaction import Transaction


async def accept(tx: Transaction, asked: Sequence[Acceptance]) -> list[Accepted | FabricError]:
    drafts = [_draft(each, tx.now) for each in asked]
    fresh = {draft.job_id: (each, draft) for each, draft in _good(asked, drafts)}  # an id given twice counts once
    # In the order of keys, so that two nodes that accept the same ones never wait for each other.
    ordered = sorted(fresh.values(), key=_order)
    written = await insert_jobs(tx, ordered) if ordered else set()
    rest = [each.new for each, draft in _good(asked, drafts) if not _is_mine(each, draft, written, fresh)]
    known = await find_known(tx, rest)
    return [
        draft if isinstance(draft, FabricError)
        else Accepted(draft, True) if _is_mine(each, draft, written, fresh)
        else _same(each, known)
        for each, draft in zip(asked, drafts, strict=True)
    ]  # fmt: skip


def _draft(each: Acceptance, now: float) -> JobSummary | FabricError:
    try:
        return lifecycle.accepted(each.new, each.size, now)
    except FabricError as exc:
        return exc


def _good(
    asked: Sequence[Acceptance], drafts: Sequence[JobSummary | FabricError]
) -> list[tuple[Acceptance, JobSummary]]:  # fmt: skip
    pairs = zip(asked, drafts, strict=True)
    return [(each, draft) for each, draft in pairs if not isinstance(draft, FabricError)]


def _order(pair: tuple[Acceptance, JobSummary]) -> tuple[str, str]:
    new = pair[0].new
    return (new.owner, new.key) if new.key is not None else ("", "")


def _is_mine(
    each: Acceptance, draft: JobSummary, written: set[str], fresh: dict[str, tuple[Acceptance, JobSummary]]
) -> bool:  # fmt: skip
    return draft.job_id in written and fresh[draft.job_id][0] is each


def _same(each: Acceptance, known: Known) -> Accepted | FabricError:
    found = known.of(each.new)
    if found is None:
        raise Again(f"job {each.new.job_id} was in the way and is gone")
    try:
        return Accepted(lifecycle.same_again(found, each.new), False)
    except FabricError as exc:
        return exc
