"""The published protocol of gRPC agents: `agent.proto`, and the code that `scripts/generate` makes from it."""
