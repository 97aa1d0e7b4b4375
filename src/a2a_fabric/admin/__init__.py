"""What operators see and change of a running node: the operations `fabric.admin.*` of the console and the CLI."""
