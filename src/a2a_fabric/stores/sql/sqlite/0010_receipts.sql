-- Signed receipts of calls. `body` is the receipt, `digest` its hash, to which the next one of the chain refers.
CREATE TABLE receipts (
    chain  TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    at     REAL NOT NULL,
    digest TEXT NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (chain, seq)
) WITHOUT ROWID;

CREATE INDEX receipts_age ON receipts (at);
