"""The A2A wire format, shared by the A2A door, the A2A runtime and the prober. Imports only core."""
