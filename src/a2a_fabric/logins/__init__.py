"""Logins of principals at agents that want OAuth: discovery, sign-in, encrypted tokens, refresh."""
