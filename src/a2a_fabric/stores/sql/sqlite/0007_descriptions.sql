-- What each agent published about itself when it was last asked, and what its tools said when they were approved.
-- `connection` is a digest of the agent's address or command: another server under the same id has its own row.
CREATE TABLE agent_descriptions (
    agent_id   TEXT NOT NULL,
    connection TEXT NOT NULL,
    body       BLOB NOT NULL,
    seen_at    REAL NOT NULL,
    PRIMARY KEY (agent_id, connection)
) WITHOUT ROWID;

CREATE INDEX agent_descriptions_age ON agent_descriptions (seen_at);
