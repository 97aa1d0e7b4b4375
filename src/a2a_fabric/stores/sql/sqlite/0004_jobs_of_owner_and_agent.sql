-- Listing what one owner asked of one agent, where either may have a great many jobs.
CREATE INDEX jobs_owner_agent ON jobs (owner, agent_id, state);
