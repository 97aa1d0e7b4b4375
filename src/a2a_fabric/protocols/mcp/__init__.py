"""The Model Context Protocol, as the door, the runtime and the probes share it."""
