-- The call history: each row is what a node recorded of one call or one job. `body` is the record with its spans.
CREATE TABLE a2a_fabric.calls (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trace_id   text COLLATE "C" NOT NULL,
    span_id    text COLLATE "C" NOT NULL,
    started_at double precision NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    principal  text,
    door       text NOT NULL,
    agent_id   text NOT NULL,
    used       text,
    capability text NOT NULL,
    is_failed  boolean NOT NULL,
    is_call    boolean NOT NULL,
    size       bigint NOT NULL,
    body       bytea NOT NULL,
    UNIQUE (trace_id, span_id, started_at)  -- a batch that is written twice is stored once
);

CREATE INDEX calls_owner ON a2a_fabric.calls (owner, seq);
CREATE INDEX calls_failed ON a2a_fabric.calls (seq) WHERE is_failed;
CREATE INDEX calls_age ON a2a_fabric.calls (started_at);
