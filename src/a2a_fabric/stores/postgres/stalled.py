"""Nodes that fell asleep in the middle of a transaction: stopped, swapped out, or gone without a word.

What such a transaction has locked would stay locked until the node wakes, and its
jobs could not be taken over. So every transaction lets the server end it once its
client has said nothing for a while. One whose client does not even read what it
asked for is not idle in the server's eyes; the other nodes look for those. To its
own node either looks like a broken connection, and the work is done again.
"""

from __future__ import annotations

_SILENCE = 3.0  # seconds; far longer than a node that is awake needs between two statements

END_SILENT = f"SET LOCAL idle_in_transaction_session_timeout = {int(_SILENCE * 1000)}"
BEGIN = f"BEGIN; {END_SILENT}"

# Waiting for its client for longer ($1 seconds) than any client of ours waits for an answer.
END_UNHEARD = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
AND wait_event_type = 'Client' AND xact_start IS NOT NULL
AND query_start < clock_timestamp() - make_interval(secs => $1)
AND pid IN (
    SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
    WHERE relnamespace = 'a2a_fabric'::regnamespace
)
"""
UNHEARD = 1.5  # times as long as a statement may take
