-- Jobs. `jobs` holds what changes, in short rows; calls and results, which may be long, lie beside it,
-- so that a heartbeat or an event never rewrites them. `seq` is the age.
CREATE TABLE jobs (
    seq              INTEGER PRIMARY KEY,
    job_id           TEXT NOT NULL UNIQUE,
    owner            TEXT NOT NULL,
    agent_id         TEXT NOT NULL,
    capability       TEXT NOT NULL,
    state            TEXT NOT NULL,
    priority         INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 4),
    run_at           REAL NOT NULL,
    expires_at       REAL,
    key              TEXT,
    digest           TEXT,
    attempt          INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    worker           TEXT,
    lease_until      REAL,
    cancel_requested INTEGER NOT NULL,
    created_at       REAL NOT NULL,
    updated_at       REAL NOT NULL,
    started_at       REAL,
    ended_at         REAL,
    retention        REAL,
    events           INTEGER NOT NULL,
    size             INTEGER NOT NULL,
    version          INTEGER NOT NULL,
    error            BLOB,
    meta             BLOB,
    keep_until       REAL
);

-- Claiming: by priority and time, over all agents and within one.
CREATE INDEX jobs_queue ON jobs (priority, run_at) WHERE state = 'queued';
CREATE INDEX jobs_agent_queue ON jobs (agent_id, priority, run_at) WHERE state = 'queued';
-- Taking over.
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL AND state IN ('queued', 'input_required');
CREATE INDEX jobs_cancelled ON jobs (cancel_requested)
    WHERE cancel_requested = 1 AND state IN ('queued', 'input_required');
-- Listing, newest first: one ordered stretch per state.
CREATE INDEX jobs_state ON jobs (state);
CREATE INDEX jobs_owner ON jobs (owner, state);
CREATE INDEX jobs_agent ON jobs (agent_id, state);
CREATE UNIQUE INDEX jobs_key ON jobs (owner, key) WHERE key IS NOT NULL;
-- Pruning.
CREATE INDEX jobs_ended ON jobs (ended_at, size) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_keep ON jobs (keep_until) WHERE keep_until IS NOT NULL;

CREATE TABLE job_calls (
    job  INTEGER PRIMARY KEY,
    call BLOB NOT NULL
);

CREATE TABLE job_bodies (
    job      INTEGER PRIMARY KEY,
    result   BLOB,
    question BLOB,
    answer   BLOB
);

CREATE TABLE job_events (
    job    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at     REAL NOT NULL,
    kind   TEXT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
