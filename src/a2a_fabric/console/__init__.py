"""The web console: a page without a build step that talks to the admin API of its node."""
