"""What operators see: one log line and one metrics update per call."""
