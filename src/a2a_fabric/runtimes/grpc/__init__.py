"""The runtime `grpc`. Its library is an extra of the package."""

try:
    import grpc  # noqa: F401  # so that a missing library is reported with what to install
except ModuleNotFoundError as exc:
    raise ImportError("it needs grpcio, which comes with: pip install 'a2a-fabric[grpc]'") from exc
