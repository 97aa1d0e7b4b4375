-- Messages in the order of their conversations, and in the inboxes of those who have not confirmed them.
CREATE TABLE a2a_fabric.conversations (
    conversation_id text COLLATE "C" PRIMARY KEY,
    last            bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE a2a_fabric.messages (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id      text COLLATE "C" NOT NULL UNIQUE,
    conversation_id text COLLATE "C" NOT NULL,
    number          bigint NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    key             text COLLATE "C",
    sent_at         double precision NOT NULL,
    message         bytea NOT NULL
);

CREATE UNIQUE INDEX messages_conversation ON a2a_fabric.messages (conversation_id, number);
CREATE UNIQUE INDEX messages_key ON a2a_fabric.messages (owner, key) WHERE key IS NOT NULL;
CREATE INDEX messages_age ON a2a_fabric.messages (sent_at);

CREATE TABLE a2a_fabric.inbox_entries (
    entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    inbox      text COLLATE "C" NOT NULL,
    message    bigint NOT NULL,
    priority   integer NOT NULL,
    expires_at double precision,
    attempt    bigint NOT NULL,
    visible_at double precision NOT NULL
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX inbox_entries_message ON a2a_fabric.inbox_entries (message, inbox);
CREATE INDEX inbox_entries_order ON a2a_fabric.inbox_entries (inbox, priority DESC, entry);

CREATE TABLE a2a_fabric.subscriptions (
    topic text COLLATE "C" NOT NULL,
    inbox text COLLATE "C" NOT NULL,
    PRIMARY KEY (topic, inbox)
);
