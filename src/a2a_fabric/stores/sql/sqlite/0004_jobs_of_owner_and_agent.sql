-- Listing what one owner asked of one agent, where either may have a great many jobs. Few are under way at a time, so
-- only those that have ended are here: a job on its way through its states costs no more than before.
CREATE INDEX jobs_owner_agent ON jobs (owner, agent_id, state) WHERE ended_at IS NOT NULL;
