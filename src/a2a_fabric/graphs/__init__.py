"""Task graphs: work for several agents, with parallel and dependent nodes, as one job with one for each node."""
