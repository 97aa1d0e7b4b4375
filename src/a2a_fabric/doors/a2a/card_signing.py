"""Signs agent cards as JSON Web Signatures over their canonical form, with the signer of the A2A SDK."""

from __future__ import annotations

from typing import Any

from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.a2a.cards import CardSigner
from a2a_fabric.doors.a2a.settings import CardSigningSettings

_TRIAL_MODES = ["text/plain"]
_TRIAL_CARD = {  # every required field, or the SDK logs warnings
    "name": "trial card",
    "description": "A card to try a key with",
    "version": "1",
    "supportedInterfaces": [{"url": "http://localhost", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True},
    "defaultInputModes": _TRIAL_MODES,
    "defaultOutputModes": _TRIAL_MODES,
    "skills": [{"id": "a", "name": "a", "description": "a skill", "tags": ["a"]}],
}


def build_signer(settings: CardSigningSettings) -> CardSigner:
    """Raises ConfigError if the key does not fit the algorithm."""
    header = ProtectedHeader(kid=settings.key_id, alg=settings.algorithm, jku=settings.keys_url, typ="JOSE")
    if settings.keys_url is None:
        del header["jku"]  # type: ignore[misc]  # the type requires `jku`, the standard does not
    sign = create_agent_card_signer(settings.key, header)

    def sign_card(card: dict[str, Any]) -> list[dict[str, Any]]:
        signed_card = sign(ParseDict(card, AgentCard(), ignore_unknown_fields=True))
        return [MessageToDict(each) for each in signed_card.signatures]

    try:
        sign_card(_TRIAL_CARD)
    except Exception as exc:
        raise ConfigError(f"doors: a2a: signing: the key cannot be used with {settings.algorithm}: {exc}") from exc
    return sign_card
