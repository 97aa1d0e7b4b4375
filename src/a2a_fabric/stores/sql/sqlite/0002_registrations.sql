-- Agents registered at run time. The manifest is kept whole; the columns beside it are there to be asked for.
-- A removed agent stays as a row with `removed`, so that the feed of changes can tell of it.
CREATE TABLE agents (
    agent_id      TEXT PRIMARY KEY,
    revision      INTEGER NOT NULL UNIQUE,
    removed       INTEGER NOT NULL DEFAULT 0,
    owner         TEXT NOT NULL,
    registered_at REAL NOT NULL,
    updated_at    REAL NOT NULL,
    seen_at       REAL NOT NULL,
    lease_until   REAL,
    node_id       TEXT NOT NULL,
    runtime       TEXT,
    transport     TEXT,
    endpoint_uri  TEXT,
    display_name  TEXT NOT NULL,
    description   TEXT NOT NULL,
    version       TEXT NOT NULL,
    trust_tier    TEXT NOT NULL,
    audience      TEXT,
    realm         TEXT,
    cog_id        TEXT,
    delegate_id   TEXT,
    manifest      BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX agents_lease ON agents (lease_until) WHERE lease_until IS NOT NULL AND removed = 0;

-- `folded` is the spelling under which a capability is looked up.
CREATE TABLE agent_capabilities (
    agent_id       TEXT NOT NULL,
    folded         TEXT NOT NULL,
    name           TEXT NOT NULL,
    description    TEXT NOT NULL,
    streaming      INTEGER NOT NULL,
    modalities     TEXT NOT NULL,
    input_schema   BLOB,
    output_schema  BLOB,
    max_timeout_ms INTEGER,
    PRIMARY KEY (agent_id, folded)
) WITHOUT ROWID;

CREATE INDEX agent_capabilities_folded ON agent_capabilities (folded, agent_id);

CREATE TABLE agent_tags (
    tag      TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    PRIMARY KEY (tag, agent_id)
) WITHOUT ROWID;

CREATE INDEX agent_tags_agent ON agent_tags (agent_id);

CREATE TABLE health_checks (
    agent_id   TEXT NOT NULL,
    checked_at REAL NOT NULL,
    node_id    TEXT NOT NULL,
    status     TEXT NOT NULL,
    latency    REAL,
    error      TEXT,
    PRIMARY KEY (agent_id, checked_at, node_id)
) WITHOUT ROWID;

CREATE INDEX health_checks_age ON health_checks (checked_at);
