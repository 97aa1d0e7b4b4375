"""The A2A wire format, once for the A2A door, the A2A and Agent Zero runtimes and the probes.

`models` has the types, `parts`, `render` and `decode` read and write them in each dialect, `card` reads agent cards."""
