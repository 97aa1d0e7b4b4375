"""Cards signed as JSON Web Signatures over their canonical form, by the SDK's own signer."""

from __future__ import annotations

from typing import Any

from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.a2a.cards import Signer
from a2a_fabric.doors.a2a.settings import Signing

_MODES = ["text/plain"]
_TRIAL = {  # with all that a card must have, or the SDK warns of what is missing
    "name": "a card",
    "description": "To try a key with",
    "version": "1",
    "supportedInterfaces": [{"url": "http://localhost", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True},
    "defaultInputModes": _MODES,
    "defaultOutputModes": _MODES,
    "skills": [{"id": "a", "name": "a", "description": "a skill", "tags": ["a"]}],
}


def signer(settings: Signing) -> Signer:
    """Raises ConfigError for a key that does not fit."""
    header = ProtectedHeader(kid=settings.key_id, alg=settings.algorithm, jku=settings.keys_url, typ="JOSE")
    if settings.keys_url is None:
        del header["jku"]  # type: ignore[misc]  # a header without it is one, too
    sign = create_agent_card_signer(settings.key, header)

    def signatures(card: dict[str, Any]) -> list[dict[str, Any]]:
        signed = sign(ParseDict(card, AgentCard(), ignore_unknown_fields=True))
        return [MessageToDict(each) for each in signed.signatures]

    try:
        signatures(_TRIAL)
    except Exception as exc:
        raise ConfigError(f"doors: a2a: signing: the key cannot be used with {settings.algorithm}: {exc}") from exc
    return signatures
