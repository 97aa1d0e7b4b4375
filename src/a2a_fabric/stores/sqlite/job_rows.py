"""The statements that SQLite has for rows of jobs. What stands in the rows is known to stores/job_rows.py."""

from __future__ import annotations

from a2a_fabric.stores.job_rows import CHANGING, COLUMNS, FIXED

INSERT = (
    f"INSERT INTO jobs ({', '.join((*FIXED, *CHANGING))}) "  # noqa: S608
    f"VALUES ({', '.join('?' * len((*FIXED, *CHANGING)))}) ON CONFLICT DO NOTHING"
)
INSERT_AS = (
    f"INSERT INTO jobs (seq, {', '.join((*FIXED, *CHANGING))}) "  # noqa: S608
    f"VALUES (?, {', '.join('?' * len((*FIXED, *CHANGING)))})"
)
UPDATE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in CHANGING)} WHERE seq = ?"  # noqa: S608

SELECT = f"SELECT {COLUMNS} FROM jobs"  # noqa: S608
SELECT_WHOLE = (
    f"SELECT {COLUMNS}, job_calls.call, job_bodies.result, job_bodies.question, job_bodies.answer "  # noqa: S608
    "FROM jobs JOIN job_calls ON job_calls.job = jobs.seq LEFT JOIN job_bodies ON job_bodies.job = jobs.seq"
)
