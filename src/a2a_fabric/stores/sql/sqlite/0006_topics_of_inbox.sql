-- Counting to how many topics an inbox has subscribed.
CREATE INDEX subscriptions_inbox ON subscriptions (inbox);
