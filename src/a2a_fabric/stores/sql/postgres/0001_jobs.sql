-- Jobs. `jobs` holds what changes, in short rows with room to change in place; calls and results, which may be
-- long, lie beside it, so that a heartbeat or an event never rewrites them. `seq` is the age.
CREATE TABLE a2a_fabric.jobs (
    seq              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id           text COLLATE "C" NOT NULL UNIQUE,
    owner            text COLLATE "C" NOT NULL,
    agent_id         text COLLATE "C" NOT NULL,
    capability       text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    priority         integer NOT NULL CHECK (priority BETWEEN 1 AND 4),
    run_at           double precision NOT NULL,
    expires_at       double precision,
    key              text COLLATE "C",
    digest           text COLLATE "C",
    attempt          bigint NOT NULL,
    fence            bigint NOT NULL,
    worker           text COLLATE "C",
    lease_until      double precision,
    cancel_requested boolean NOT NULL,
    created_at       double precision NOT NULL,
    updated_at       double precision NOT NULL,
    started_at       double precision,
    ended_at         double precision,
    retention        double precision,
    events           bigint NOT NULL,
    size             bigint NOT NULL,
    version          bigint NOT NULL,
    error            bytea,
    meta             bytea,
    keep_until       double precision
) WITH (fillfactor = 70);

-- Claiming: by priority and time, over all agents and within one.
CREATE INDEX jobs_queue ON a2a_fabric.jobs (priority, run_at, seq) WHERE state = 'queued';
CREATE INDEX jobs_agent_queue ON a2a_fabric.jobs (agent_id, priority, run_at, seq) WHERE state = 'queued';
-- Taking over, and counting what an agent has at work.
CREATE INDEX jobs_lease ON a2a_fabric.jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_expiry ON a2a_fabric.jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('queued', 'input_required');
CREATE INDEX jobs_cancelled ON a2a_fabric.jobs (seq)
    WHERE cancel_requested AND state IN ('queued', 'input_required');
-- Listing, newest first: one ordered stretch per state.
CREATE INDEX jobs_state ON a2a_fabric.jobs (state, seq);
CREATE INDEX jobs_owner ON a2a_fabric.jobs (owner, state, seq);
CREATE INDEX jobs_agent ON a2a_fabric.jobs (agent_id, state, seq);
CREATE UNIQUE INDEX jobs_key ON a2a_fabric.jobs (owner, key) WHERE key IS NOT NULL;
-- Pruning.
CREATE INDEX jobs_ended ON a2a_fabric.jobs (ended_at) INCLUDE (size) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_keep ON a2a_fabric.jobs (keep_until) WHERE keep_until IS NOT NULL;

CREATE TABLE a2a_fabric.job_calls (
    job  bigint PRIMARY KEY,
    call bytea NOT NULL
);

CREATE TABLE a2a_fabric.job_bodies (
    job      bigint PRIMARY KEY,
    result   bytea,
    question bytea,
    answer   bytea
);

CREATE TABLE a2a_fabric.job_events (
    job    bigint NOT NULL,
    number bigint NOT NULL,
    at     double precision NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    data   bytea NOT NULL,
    PRIMARY KEY (job, number)
);
