"""Field names as JSON of protos may also be written: `task_id` for `taskId`.

Only the protocol's own fields are respelt, no others, and nothing inside free data: those keys belong to their sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = Mapping[str, Any]  # the fields that hold further ones of the protocol

FLAT: Shape = {}
_AUTHENTICATED: Shape = {"authentication": FLAT}
PUSH: Shape = {
    **_AUTHENTICATED,
    "pushNotificationConfig": _AUTHENTICATED,
    "config": {**_AUTHENTICATED, "pushNotificationConfig": _AUTHENTICATED},
}
_MESSAGE: Shape = {"parts": {"file": FLAT}, "content": {"file": FLAT}}
SENDING: Shape = {
    "message": _MESSAGE,
    "request": _MESSAGE,
    "configuration": {
        "taskPushNotificationConfig": _AUTHENTICATED,
        "pushNotificationConfig": _AUTHENTICATED,
        "pushNotification": _AUTHENTICATED,
    },
}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_FIELDS = {
    name: _camel(name)
    for name in (
        "accepted_output_modes",
        "config_id",
        "context_id",
        "file_with_bytes",
        "file_with_uri",
        "history_length",
        "include_artifacts",
        "media_type",
        "message_id",
        "mime_type",
        "page_size",
        "page_token",
        "push_notification",
        "push_notification_config",
        "push_notification_config_id",
        "reference_task_ids",
        "return_immediately",
        "status_timestamp_after",
        "task_id",
        "task_push_notification_config",
    )
}
_SPELLINGS = frozenset(_FIELDS)


def respelt(given: Any, shape: Shape) -> Any:
    """The same if there is nothing to do, which is nearly always so. Of two spellings the usual one counts."""
    return given if _is_usual(given, shape) else _respelt(given, shape)


def _is_usual(given: Any, shape: Shape) -> bool:
    """Every message passes here: plain loops, as they take a fraction of the time."""
    if isinstance(given, dict):
        if not _SPELLINGS.isdisjoint(given):
            return False
        for name in shape:
            if name in given and not _is_usual(given[name], shape[name]):
                return False
    elif isinstance(given, list):
        for each in given:
            if not _is_usual(each, shape):
                return False
    return True


def _respelt(given: Any, shape: Shape) -> Any:
    if isinstance(given, list):
        return [_respelt(each, shape) for each in given]
    if not isinstance(given, dict):
        return given
    unusual = {_FIELDS[name]: value for name, value in given.items() if name in _SPELLINGS}
    named = {**unusual, **{name: value for name, value in given.items() if name not in _SPELLINGS}}
    return {name: _respelt(value, shape[name]) if name in shape else value for name, value in named.items()}
