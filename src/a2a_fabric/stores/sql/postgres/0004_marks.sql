-- The mark that each writing transaction leaves, in a place of its node's that no other uses meanwhile: whoever lost
-- its connection while committing finds out here whether it did. (Transaction numbers may be given again after a crash.)
CREATE TABLE a2a_fabric.marks (
    place text COLLATE "C" PRIMARY KEY,
    mark  bigint NOT NULL,
    at    double precision NOT NULL
) WITH (fillfactor = 10);
