-- Listing what one owner asked of one agent, where either may have a great many jobs. The two are one value here, so that
-- no other index has the order that this list is asked for in.
CREATE INDEX jobs_owner_agent ON a2a_fabric.jobs ((owner || E'\n' || agent_id), state, seq);
