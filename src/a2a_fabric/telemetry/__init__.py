"""Telemetry for operators: one log line and one metrics update per call."""
