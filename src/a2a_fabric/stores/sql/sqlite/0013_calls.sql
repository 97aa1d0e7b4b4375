-- The call history: each row is what a node recorded of one call or one job. `body` is the record with its spans.
CREATE TABLE calls (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    trace_id   TEXT NOT NULL,
    span_id    TEXT NOT NULL,
    started_at REAL NOT NULL,
    owner      TEXT NOT NULL,
    principal  TEXT,
    door       TEXT NOT NULL,
    agent_id   TEXT NOT NULL,
    used       TEXT,
    capability TEXT NOT NULL,
    is_failed  INTEGER NOT NULL,
    is_call    INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    body       BLOB NOT NULL,
    UNIQUE (trace_id, span_id, started_at)  -- a batch that is written twice is stored once
);

CREATE INDEX calls_owner ON calls (owner, seq);
CREATE INDEX calls_failed ON calls (seq) WHERE is_failed = 1;
CREATE INDEX calls_age ON calls (started_at);
