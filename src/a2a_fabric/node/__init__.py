"""The parts of a node, wired from its configuration. `app.py` builds one after the other, and closes them in reverse.

`context` is what all parts are built from. The others follow the way of a call: `authentication` and `doors` in front,
`calls` in the middle, `agents` and `runtimes` behind, `peers` beside."""
