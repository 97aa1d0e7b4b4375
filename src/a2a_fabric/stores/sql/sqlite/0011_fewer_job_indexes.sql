-- Each index that a job touches costs a page of the log at its beginning and another at its end. Jobs that run are few,
-- so one index serves leases, limits and lists; jobs that have ended are listed by owner.
DROP INDEX jobs_lease;
DROP INDEX jobs_state;
DROP INDEX jobs_owner;
DROP INDEX jobs_agent;
CREATE INDEX jobs_running ON jobs (agent_id, owner, lease_until) WHERE state = 'running';
CREATE INDEX jobs_waiting ON jobs (owner, state) WHERE state IN ('queued', 'input_required');
CREATE INDEX jobs_owner ON jobs (owner, state) WHERE ended_at IS NOT NULL;
