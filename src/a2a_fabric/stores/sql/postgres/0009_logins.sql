-- Logins of principals at agents. `secret` is encrypted; `listing` is what the agent offered this principal last.
CREATE TABLE a2a_fabric.logins (
    owner      text COLLATE "C" NOT NULL,
    agent_id   text COLLATE "C" NOT NULL,
    issuer     text NOT NULL,
    scopes     text NOT NULL,
    secret     bytea NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    revision   bigint NOT NULL,
    listing    bytea,
    PRIMARY KEY (owner, agent_id)
);

CREATE INDEX logins_agent ON a2a_fabric.logins (agent_id, updated_at);

-- Logins that were started. Each can be finished once.
CREATE TABLE a2a_fabric.login_attempts (
    attempt_id text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    agent_id   text COLLATE "C" NOT NULL,
    secret     bytea NOT NULL,
    expires_at double precision NOT NULL
);

CREATE INDEX login_attempts_owner ON a2a_fabric.login_attempts (owner, expires_at);
CREATE INDEX login_attempts_age ON a2a_fabric.login_attempts (expires_at);
