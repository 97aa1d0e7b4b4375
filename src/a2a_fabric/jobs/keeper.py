"""Removes what has been kept long enough, a little at a time, in the background."""

from __future__ import annotations

import asyncio
import logging
import random

from a2a_fabric.core.job import Keep
from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import Jobs

_log = logging.getLogger(__name__)
_EVERY = 60.0
_AT_ONCE = 500
_BREATH = 0.05


async def prune_for_ever(jobs: Jobs, keep: Keep) -> None:
    while True:
        await asyncio.sleep(_EVERY * (0.5 + random.random()))  # several nodes need not meet
        try:
            is_done = False
            while not is_done:
                is_done = (await jobs.prune(keep, _AT_ONCE)).is_done
                await asyncio.sleep(_BREATH)
        except StoreError as error:
            _log.warning("ended jobs are kept longer than they should: %s", error.message)
        except Exception:
            _log.exception("pruning failed; it is tried again")
