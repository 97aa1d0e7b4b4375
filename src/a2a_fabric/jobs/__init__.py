"""The job engine: calls that are written down, worked on, and heard of again after any connection or process is gone.

`JobDesk` is its face; doors and operations know nothing else. Behind it a call
goes this way: `desk` accepts it, `worker` claims it and keeps its lease, `run`
sees it through, `recorder` writes its events, `reader` lets anybody follow them.
`handover` makes a job of a call that already runs; `webhook` tells of its end.
"""

from a2a_fabric.jobs.desk import JobDesk, Waist
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.views import job_view
from a2a_fabric.jobs.wish import JobWish, Webhook

__all__ = ["JobDesk", "JobSettings", "JobWish", "Waist", "Webhook", "job_view"]
