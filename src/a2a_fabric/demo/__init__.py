"""The demo agents: one small agent for each runtime, each with a simple, real function. They need no configuration."""
