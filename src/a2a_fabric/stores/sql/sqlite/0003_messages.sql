-- Messages in the order of their conversations, and in the inboxes of those who have not confirmed them.
CREATE TABLE conversations (
    conversation_id TEXT PRIMARY KEY,
    last            INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE messages (
    seq             INTEGER PRIMARY KEY,
    message_id      TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL,
    number          INTEGER NOT NULL,
    owner           TEXT NOT NULL,
    key             TEXT,
    sent_at         REAL NOT NULL,
    message         BLOB NOT NULL
);

CREATE UNIQUE INDEX messages_conversation ON messages (conversation_id, number);
CREATE UNIQUE INDEX messages_key ON messages (owner, key) WHERE key IS NOT NULL;
CREATE INDEX messages_age ON messages (sent_at);

-- AUTOINCREMENT: an acknowledged entry's number is never given to another message.
CREATE TABLE inbox_entries (
    entry      INTEGER PRIMARY KEY AUTOINCREMENT,
    inbox      TEXT NOT NULL,
    message    INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    expires_at REAL,
    attempt    INTEGER NOT NULL,
    visible_at REAL NOT NULL
);

CREATE UNIQUE INDEX inbox_entries_message ON inbox_entries (message, inbox);
CREATE INDEX inbox_entries_order ON inbox_entries (inbox, priority DESC, entry);

CREATE TABLE subscriptions (
    topic TEXT NOT NULL,
    inbox TEXT NOT NULL,
    PRIMARY KEY (topic, inbox)
) WITHOUT ROWID;
