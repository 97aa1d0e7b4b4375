-- Hashes of tokens that count once, until they have expired.
CREATE TABLE a2a_fabric.used_tokens (
    digest     bytea PRIMARY KEY,
    expires_at double precision NOT NULL
);

CREATE INDEX used_tokens_expiry ON a2a_fabric.used_tokens (expires_at);
