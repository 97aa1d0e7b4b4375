"""Where an issuer's own pages are looked for, and where callers are sent to find them."""

from __future__ import annotations

import subprocess
import sys

from a2a_fabric.identity.settings import metadata_urls, openid_metadata_url


def test_the_page_of_openid_is_below_the_issuer_with_or_without_a_slash_at_its_end() -> None:
    page = "https://id.example/realms/lab/.well-known/openid-configuration"
    assert (
        openid_metadata_url("https://id.example/realms/lab")
        == openid_metadata_url("https://id.example/realms/lab/")
        == page
    )


def test_the_page_that_callers_are_sent_to_is_the_first_that_is_looked_at_here() -> None:
    assert metadata_urls("https://id.example/realms/lab") == [
        openid_metadata_url("https://id.example/realms/lab"),
        "https://id.example/.well-known/oauth-authorization-server/realms/lab",
        "https://id.example/.well-known/openid-configuration/realms/lab",
    ]


def test_no_page_of_an_issuer_without_a_path_is_asked_for_twice() -> None:
    assert metadata_urls("https://id.example/") == [
        "https://id.example/.well-known/openid-configuration",
        "https://id.example/.well-known/oauth-authorization-server",
    ]


def test_a_node_without_issuers_loads_no_cryptography() -> None:
    doors = [f"a2a_fabric.doors.{door}.door" for door in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]
    code = f"import sys, a2a_fabric.app, {', '.join(doors)}; print({{'jwt', 'cryptography'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
