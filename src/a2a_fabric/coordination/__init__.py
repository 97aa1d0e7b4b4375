"""How agents work together: the standard task request and response, and the signals that agents send one another."""
