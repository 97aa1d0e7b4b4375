-- Keys of callers, as SHA-256 hashes. `revision` grows with each change, except of `last_used_at`.
CREATE TABLE keys (
    key_id       TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    digest       BLOB NOT NULL UNIQUE,
    scopes       TEXT NOT NULL,
    trust        TEXT NOT NULL,
    view         TEXT,
    created_at   REAL NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL,
    replaced     INTEGER NOT NULL,
    revision     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX keys_name ON keys (name, created_at);
CREATE INDEX keys_revision ON keys (revision);
