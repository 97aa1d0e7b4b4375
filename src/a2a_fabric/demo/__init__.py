"""The demo fleet: one small agent per runtime, each doing something little but true. No configuration needed."""
