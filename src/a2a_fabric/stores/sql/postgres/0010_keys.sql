-- Keys of callers, as SHA-256 hashes. `revision` grows with each change, except of `last_used_at`.
CREATE TABLE a2a_fabric.keys (
    key_id       text COLLATE "C" PRIMARY KEY,
    name         text COLLATE "C" NOT NULL,
    digest       bytea NOT NULL UNIQUE,
    scopes       text NOT NULL,
    trust        text NOT NULL,
    view         text,
    created_at   double precision NOT NULL,
    expires_at   double precision,
    revoked_at   double precision,
    last_used_at double precision,
    replaced     boolean NOT NULL,
    revision     bigint NOT NULL
);

CREATE INDEX keys_name ON a2a_fabric.keys (name, created_at);
CREATE INDEX keys_revision ON a2a_fabric.keys (revision);
