"""Several processes as one gateway: the workers of a machine, and the nodes of a mesh.

A *peer* is another process of the same operator that runs the same product: a worker of this node, or another node. The
modules here say how one peer asks another (`frames`, `client`, `app`), how an agent that another peer holds is called
(`runtime`), and how a request that belongs to another peer is handed to it (`relay`)."""
