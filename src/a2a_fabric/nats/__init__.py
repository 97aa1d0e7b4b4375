"""What every part of a node that uses NATS shares: addresses, credentials, the connection. Needs the extra `nats`."""

try:
    import nats  # noqa: F401  # first, so that a missing driver is told before anything else fails
except ModuleNotFoundError as exc:
    raise ImportError("it needs nats-py, which comes with: pip install 'a2a-fabric[nats]'") from exc
