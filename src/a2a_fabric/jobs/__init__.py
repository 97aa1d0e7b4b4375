"""The job engine: calls that are written down, worked on, and heard of again after any connection or process is gone.

`desk.JobDesk` is its face; doors and operations know nothing else. Behind it a call
goes this way: `desk` accepts it, `worker` claims it and keeps its lease, `run`
sees it through, `recorder` writes its events, `reader` lets anybody follow them.
`handover` makes a job of a call that already runs; `webhook` tells of its end.

Nothing is imported here: whoever needs the settings alone does not load the engine.
"""
