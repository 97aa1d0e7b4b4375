"""Attachments and parts: the same content in two vocabularies."""

from __future__ import annotations

import msgspec
import pytest

from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.content import attachment_of, not_carried, noted, parts_of
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result

PARTS = [
    Part(kind="text", text="words"),
    Part(kind="image", blob="AAAA", mime_type="image/png", name="a.png"),
    Part(kind="audio", blob="AAAA", mime_type="audio/wav"),
    Part(kind="video", url="https://example.org/v.mp4", mime_type="video/mp4"),
    Part(kind="file", blob="AAAA"),
    Part(kind="file", text="plain", name="notes.txt"),
    Part(kind="json", data={"a": [1, None]}),
    Part(kind="function_call", data={"name": "add", "arguments": {"a": 1}}),
    Part(kind="function_result", data={"name": "add", "result": 2}, meta={"id": "1"}),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_a_part_comes_back_from_the_envelope_as_it_was(part: Part) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(attachment_of(part)), type=Attachment)
    assert parts_of(Input(attachments=(sent,))) == (part,)


def test_the_documents_attachments_are_parts_by_their_media_type() -> None:
    given = Input(
        attachments=(
            Attachment(type="file", content="AAAA", mime_type="image/jpeg"),
            Attachment(type="url", content="https://example.org/x.pdf", mime_type="application/pdf"),
            Attachment(type="data", content={"n": 1}),
        )
    )
    assert [part.kind for part in parts_of(given)] == ["image", "file", "json"]


def test_what_a_protocol_cannot_carry_is_noted_in_the_result() -> None:
    notes = not_carried([Part(kind="video", blob="AAAA", name="clip.mp4")], "this program")
    assert noted(Result(data={}), notes).notes == ("'clip.mp4' was not sent: this program cannot carry video content",)
    assert noted(Result(data={}), ()).notes == ()
