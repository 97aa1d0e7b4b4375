"""Validation of JSON Schemas from untrusted sources, with bounds on the work that they can cause.

`graph` lists the subschemas of a schema and resolves its references. `cost` estimates the work
of a schema and its regular expressions before anything compiles them. `validators` compiles
schemas and decides, call by call, where arguments are checked. `manifest_check` applies all
that to the manifest of a new agent."""
