"""Messages: written down in conversations, brought to agents as calls, or left in inboxes until somebody fetches them.

`desk.MessageDesk` is its face for messages to agents and clients; `post_office.PostOffice`
for inboxes and topics. Bringing a message to an agent is a job, so that it survives
crashes and is tried again while the agent is away; `replies` writes down what comes back.

Nothing is imported here: whoever needs the settings alone does not load the engine.
"""
