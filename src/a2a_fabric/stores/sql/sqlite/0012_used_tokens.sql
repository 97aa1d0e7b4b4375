-- Hashes of tokens that count once, until they have expired.
CREATE TABLE used_tokens (
    digest     BLOB PRIMARY KEY,
    expires_at REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX used_tokens_expiry ON used_tokens (expires_at);
