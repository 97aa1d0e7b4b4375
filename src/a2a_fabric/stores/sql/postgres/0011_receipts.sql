-- Signed receipts of calls. `body` is the receipt, `digest` its hash, to which the next one of the chain refers.
CREATE TABLE a2a_fabric.receipts (
    chain  text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    at     double precision NOT NULL,
    digest text NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (chain, seq)
);

CREATE INDEX receipts_age ON a2a_fabric.receipts (at);
