"""Describes for `/docs` what the node serves besides its doors."""

from __future__ import annotations

from a2a_fabric.core.callbacks import CALLBACK_PATH
from a2a_fabric.doors.api_docs import DoorDescription, PathDescription
from a2a_fabric.web.asgi import LIVEZ_PATH, READYZ_PATH
from a2a_fabric.web.identity_middleware import JWKS_PATH
from a2a_fabric.web.token_middleware import RESOURCE_METADATA_PATH


def describe_node(*, has_issuers: bool) -> DoorDescription:
    metadata = (
        PathDescription(
            method="GET",
            path=RESOURCE_METADATA_PATH,
            summary="Whose access tokens the node accepts (RFC 9728).",
            credentials="none",
        ),
        PathDescription(
            method="GET",
            path=f"{RESOURCE_METADATA_PATH}/{{path}}",
            summary="The same for one address of the node.",
            values={"path": "mcp"},
            credentials="none",
        ),
    )
    return DoorDescription(
        name="node",
        about="Health for load balancers and orchestrators, and what others need to know of the node.",
        page="operating.md",
        paths=(
            PathDescription(method="GET", path="/", summary="The name and version of the node.", credentials="none"),
            PathDescription(
                method="GET", path=LIVEZ_PATH, summary="200 while the process answers.", credentials="none"
            ),
            PathDescription(
                method="GET",
                path=READYZ_PATH,
                summary="200 if the node takes requests, otherwise 503 and why.",
                credentials="none",
            ),
            PathDescription(
                method="GET",
                path=JWKS_PATH,
                summary="The public keys with which the node signs, as a JWK set.",
                credentials="none",
            ),
            *(metadata if has_issuers else ()),
            PathDescription(
                method="POST",
                path=f"{CALLBACK_PATH}{{key}}",
                summary="Where an agent sends news of a call that waits for it. The node tells it address and token.",
                body={},
                example={},
                headers={"X-A2A-Notification-Token": "The token of this call."},
                required=("X-A2A-Notification-Token",),
                status=204,
                credentials="none",
            ),
        ),
    )
