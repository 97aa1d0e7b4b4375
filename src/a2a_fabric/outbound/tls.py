"""The TLS side of outgoing connections: whom to trust, and who we are."""

from __future__ import annotations

import ssl
import tempfile


def client_context(client_cert: bytes | None, ca: bytes | None, verify: bool) -> ssl.SSLContext:
    """Trusts the system's authorities and those of `ca`; shows `client_cert` (chain and key) to who asks for it."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    if client_cert is not None:
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # `ssl` reads files only; its owner alone can read it
            file.write(client_cert)
            file.flush()
            context.load_cert_chain(file.name)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
