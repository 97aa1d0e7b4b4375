"""What can go wrong with things that are kept, sorted by who can do something about it.

    FabricError
    ├── CallerError
    │   ├── JobNotFound         JOB_NOT_FOUND        no such job, or not this caller's
    │   └── JobCancelled        CANCELLED            its result was asked for, and it was cancelled
    ├── LeaseLost               LEASE_LOST           the worker was replaced: stop, write nothing more
    └── StoreError              STORE_ERROR
        ├── StoreUnavailable    STORE_UNAVAILABLE    later it may work; nothing was written, unless it says so
        │   ├── StoreBusy                            locked by another program, or too much waits already
        │   └── StoreFull                            no space left on the disk
        └── StoreUnusable       STORE_UNUSABLE       the operator has to act; nothing was touched
            ├── StoreCorrupt                         not a database, or a damaged one
            ├── StoreReadOnly                        the file or the folder cannot be written
            ├── SchemaTooNew                         a newer program has been here
            └── SchemaChanged                        a migration is not the one that was applied

`Conflict` of core/errors.py is raised too: a key used for something else, an answer to a job that asked nothing.
"""

from __future__ import annotations

from a2a_fabric.core.errors import CallerError, FabricError, rebuilt_by_code


@rebuilt_by_code
class JobNotFound(CallerError):
    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job '{job_id[:64]}' not found. List yours with: a2a-fabric jobs", job_id=job_id[:64])


@rebuilt_by_code
class JobCancelled(CallerError):
    code = "CANCELLED"


class LeaseLost(FabricError):
    """Never shown to a caller: the worker that hears it drops the job without a word."""

    code = "LEASE_LOST"

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"Job '{job_id}' is no longer held under fence {fence}", job_id=job_id, fence=fence)


@rebuilt_by_code
class StoreError(FabricError):
    code = "STORE_ERROR"


@rebuilt_by_code
class StoreUnavailable(StoreError):
    code = "STORE_UNAVAILABLE"


class StoreBusy(StoreUnavailable):
    pass


class StoreFull(StoreUnavailable):
    def __init__(self, place: str) -> None:
        super().__init__(
            f"No space left for {place}: free some (a2a-fabric jobs prune) and the node goes on by itself", store=place
        )


@rebuilt_by_code
class StoreUnusable(StoreError):
    code = "STORE_UNUSABLE"


class StoreCorrupt(StoreUnusable):
    def __init__(self, place: str, why: str) -> None:
        super().__init__(
            f"{place} is not a usable database ({why}). It was left as it is: restore a copy, or move it away "
            "to begin with an empty one",
            store=place,
        )


class StoreReadOnly(StoreUnusable):
    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} cannot be written: give this user write permission on the file and its folder, "
            "or name another place with --store",
            store=place,
        )


class SchemaTooNew(StoreUnusable):
    def __init__(self, place: str, found: int, known: int) -> None:
        super().__init__(
            f"{place} has schema {found}, and this program knows up to {known}: run the newer a2a-fabric that wrote "
            "it, or name another place with --store",
            store=place,
            found=found,
            known=known,
        )


class SchemaChanged(StoreUnusable):
    def __init__(self, place: str, migration: str) -> None:
        super().__init__(
            f"{place} was made with another text of migration {migration} than this program has: install the release "
            "that made it, or export from there and import here",
            store=place,
            migration=migration,
        )
