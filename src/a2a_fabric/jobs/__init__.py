"""The job engine: calls that are stored, run by workers, and followed after any connection or process is gone.

`jobs.Jobs` is the facade; doors and operations use nothing else. Behind it a call
takes this path: `jobs` accepts it, `worker` claims it and renews its lease, `run`
executes it and stores its events, `reader` lets its owner follow them.
`promotion` turns a call that already runs into a job; `webhooks` reports its end.

Nothing is imported here, so that code that needs only the settings does not load the engine."""
