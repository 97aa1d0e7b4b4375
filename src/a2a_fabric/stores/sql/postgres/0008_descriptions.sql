-- What each agent published about itself when it was last asked, and what its tools said when they were approved.
-- `connection` is a digest of the agent's address or command: another server under the same id has its own row.
CREATE TABLE a2a_fabric.agent_descriptions (
    agent_id   text COLLATE "C" NOT NULL,
    connection text COLLATE "C" NOT NULL,
    body       bytea NOT NULL,
    seen_at    double precision NOT NULL,
    PRIMARY KEY (agent_id, connection)
);

CREATE INDEX agent_descriptions_age ON a2a_fabric.agent_descriptions (seen_at);
