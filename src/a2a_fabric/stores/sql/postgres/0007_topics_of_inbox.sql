-- Counting to how many topics an inbox has subscribed.
CREATE INDEX subscriptions_inbox ON a2a_fabric.subscriptions (inbox);
