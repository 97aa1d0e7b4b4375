"""Attachments and parts: the same content in two vocabularies."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import (
    Attachment,
    Input,
    add_notes,
    attachment_from_part,
    bind_arguments,
    check_attachments,
    describe_unbound_attachments,
    describe_unsupported_parts,
    is_base64,
    parts_from_input,
    result_from_parts,
)
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Part, Result

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
    sent = msgspec.json.decode(msgspec.json.encode(attachment_from_part(part)), type=Attachment)
    assert parts_from_input(Input(attachments=(sent,))) == (part,)


def test_the_documents_attachments_are_parts_by_their_media_type() -> None:
    given = Input(
        attachments=(
            Attachment(type="file", content="AAAA", mime_type="image/jpeg"),
            Attachment(type="url", content="https://example.org/x.pdf", mime_type="application/pdf"),
            Attachment(type="data", content={"n": 1}),
        )
    )
    assert [part.kind for part in parts_from_input(given)] == ["image", "file", "json"]


def test_what_a_protocol_cannot_carry_is_noted_in_the_result() -> None:
    notes = describe_unsupported_parts([Part(kind="video", blob="AAAA", name="clip.mp4")], "this program")
    assert add_notes(Result(data={}), notes).notes == (
        "'clip.mp4' was not sent: this program cannot carry video content",
    )
    assert add_notes(Result(data={}), ()).notes == ()


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("", True),
        ("aGk=", True),
        ("aGkh", True),
        ("aA==", True),
        ("a+/9", True),
        ("aGk", False),
        ("aG=k", False),
        ("a===", False),
        ("====", False),
        ("aGk\n", False),
        ("a-_9", False),
        ("grüß", False),
        ("aGk=aGk=", False),
    ],
)
def test_base64_is_known_by_its_letters(text: str, is_good: bool) -> None:
    assert is_base64(text) is is_good


@given(st.binary(max_size=200))
def test_whatever_is_base64_is_taken(content: bytes) -> None:
    assert is_base64(base64.b64encode(content).decode())


@pytest.mark.parametrize(
    ("attachment", "why"),
    [
        (Attachment(type="file", content="not base64!"), "not base64"),
        (Attachment(type="file", content={"a": 1}), "not base64"),
        (Attachment(type="file"), "not base64"),
        (Attachment(type="url", content=7), "not a URL"),
        (Attachment(type="url"), "not a URL"),
    ],
)
def test_an_attachment_that_is_not_what_it_says_is_bad_input_by_its_place(attachment: Attachment, why: str) -> None:
    good = Attachment(type="file", content="aGk=")
    with pytest.raises(BadInput, match=why) as caught:
        check_attachments(Input(attachments=(good, attachment)))
    assert caught.value.details["field"] == "attachments[1].content"


def test_data_may_be_anything() -> None:
    anything: list[Any] = [None, 1, "x", [], {}]
    check_attachments(Input(attachments=tuple(Attachment(type="data", content=each) for each in anything)))


def test_content_alone_is_an_answer_whose_words_are_the_answer() -> None:
    image = Part(kind="image", blob="AAAA")
    words = Part(kind="text", text="see")
    assert result_from_parts([words]) == Result(data={"answer": "see"})
    assert result_from_parts([words, image]) == Result(data={"answer": "see"}, parts=(words, image))
    assert result_from_parts([image]) == Result(data={}, parts=(image,))
    assert result_from_parts([]) == Result(data={})


ITEMS = {"type": "object"}


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ({"type": "array", "items": ITEMS}, True),
        ({"type": "array"}, True),
        ({"type": ["array", "null"], "items": {"$ref": "#/$defs/File"}}, True),
        ({}, True),
        (True, True),
        ({"type": "array", "items": {"type": "string"}}, False),
        ({"type": "string"}, False),
        (False, False),
        (None, False),
    ],
)
def test_attachments_become_an_argument_only_where_the_schema_has_a_fitting_place(found: Any, fits: bool) -> None:
    schema = {"type": "object", "properties": {"attachments": found} if found is not None else {}}
    attachment = Attachment(type="url", content="https://example.org/a.png")
    sent = Input(attachments=(attachment,))
    arguments = bind_arguments(Capability(name="look", input_schema=schema), sent)
    assert ("attachments" in arguments) is fits
    if fits:
        assert arguments["attachments"] == [{"type": "url", "content": "https://example.org/a.png"}]
    notes = () if fits else ("an attachment of kind file was not sent: 'look' takes no attachments",)
    assert describe_unbound_attachments(sent, arguments, "look") == notes
