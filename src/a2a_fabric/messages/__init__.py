"""Messages: stored in conversations, delivered to agents as calls, or kept in inboxes until they are received.

`messages.Messages` is the facade for messages to agents and clients, `inboxes.Inboxes`
the one for inboxes and topics. Delivery to an agent is a job, so that it survives
crashes and is retried while the agent is unavailable; `delivery` stores the reply.

Nothing is imported here, so that code that needs only the settings does not load the engine."""
