-- Agents registered at run time. The manifest is kept whole; the columns beside it are there to be asked for.
-- A removed agent stays as a row with `removed`, so that the feed of changes can tell of it.
CREATE TABLE a2a_fabric.agents (
    agent_id      text COLLATE "C" PRIMARY KEY,
    revision      bigint NOT NULL,
    removed       boolean NOT NULL DEFAULT false,
    owner         text COLLATE "C" NOT NULL,
    registered_at double precision NOT NULL,
    updated_at    double precision NOT NULL,
    seen_at       double precision NOT NULL,
    lease_until   double precision,
    node_id       text COLLATE "C" NOT NULL,
    runtime       text COLLATE "C",
    transport     text COLLATE "C",
    endpoint_uri  text COLLATE "C",
    display_name  text NOT NULL,
    description   text NOT NULL,
    version       text NOT NULL,
    trust_tier    text COLLATE "C" NOT NULL,
    audience      text COLLATE "C",
    realm         text COLLATE "C",
    cog_id        text COLLATE "C",
    delegate_id   text COLLATE "C",
    manifest      bytea NOT NULL
);

CREATE UNIQUE INDEX agents_revision ON a2a_fabric.agents (revision);
CREATE INDEX agents_lease ON a2a_fabric.agents (lease_until) WHERE lease_until IS NOT NULL AND NOT removed;

-- `folded` is the spelling under which a capability is looked up.
CREATE TABLE a2a_fabric.agent_capabilities (
    agent_id       text COLLATE "C" NOT NULL,
    folded         text COLLATE "C" NOT NULL,
    name           text NOT NULL,
    description    text NOT NULL,
    streaming      boolean NOT NULL,
    modalities     text NOT NULL,
    input_schema   bytea,
    output_schema  bytea,
    max_timeout_ms bigint,
    PRIMARY KEY (agent_id, folded)
);

CREATE INDEX agent_capabilities_folded ON a2a_fabric.agent_capabilities (folded, agent_id);

CREATE TABLE a2a_fabric.agent_tags (
    tag      text COLLATE "C" NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tag, agent_id)
);

CREATE INDEX agent_tags_agent ON a2a_fabric.agent_tags (agent_id);

CREATE TABLE a2a_fabric.health_checks (
    agent_id   text COLLATE "C" NOT NULL,
    checked_at double precision NOT NULL,
    node_id    text COLLATE "C" NOT NULL,
    status     text COLLATE "C" NOT NULL,
    latency    double precision,
    error      text,
    PRIMARY KEY (agent_id, checked_at, node_id)
);

CREATE INDEX health_checks_age ON a2a_fabric.health_checks (checked_at);
