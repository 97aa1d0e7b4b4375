-- Logins of principals at agents. `secret` is encrypted; `listing` is what the agent offered this principal last.
CREATE TABLE logins (
    owner      TEXT NOT NULL,
    agent_id   TEXT NOT NULL,
    issuer     TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    secret     BLOB NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    revision   INTEGER NOT NULL,
    listing    BLOB,
    PRIMARY KEY (owner, agent_id)
) WITHOUT ROWID;

CREATE INDEX logins_agent ON logins (agent_id, updated_at);

-- Logins that were started. Each can be finished once.
CREATE TABLE login_attempts (
    attempt_id TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    agent_id   TEXT NOT NULL,
    secret     BLOB NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX login_attempts_owner ON login_attempts (owner, expires_at);
CREATE INDEX login_attempts_age ON login_attempts (expires_at);
