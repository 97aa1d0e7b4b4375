"""The demo agents: one small agent per runtime, each with a simple, real function. No configuration needed."""
