-- Removing from inboxes what nobody receives any more.
CREATE INDEX inbox_entries_expiry ON a2a_fabric.inbox_entries (expires_at) WHERE expires_at IS NOT NULL;
