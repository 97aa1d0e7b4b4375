from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallRequest(_message.Message):
    __slots__ = ("trace", "auth", "target", "input", "response", "answers", "conversation_id", "delegation_chain", "on_behalf_of")
    TRACE_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_CHAIN_FIELD_NUMBER: _ClassVar[int]
    ON_BEHALF_OF_FIELD_NUMBER: _ClassVar[int]
    trace: Trace
    auth: Auth
    target: Target
    input: Input
    response: ResponseForm
    answers: Answers
    conversation_id: str
    delegation_chain: _containers.RepeatedScalarFieldContainer[str]
    on_behalf_of: Auth
    def __init__(self, trace: _Optional[_Union[Trace, _Mapping]] = ..., auth: _Optional[_Union[Auth, _Mapping]] = ..., target: _Optional[_Union[Target, _Mapping]] = ..., input: _Optional[_Union[Input, _Mapping]] = ..., response: _Optional[_Union[ResponseForm, _Mapping]] = ..., answers: _Optional[_Union[Answers, _Mapping]] = ..., conversation_id: _Optional[str] = ..., delegation_chain: _Optional[_Iterable[str]] = ..., on_behalf_of: _Optional[_Union[Auth, _Mapping]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("trace_id", "span_id", "parent_span_id")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    span_id: str
    parent_span_id: str
    def __init__(self, trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ...) -> None: ...

class Auth(_message.Message):
    __slots__ = ("mode", "principal_id", "agent_passport_id", "signature", "key_id", "delegate_id", "mandate_id", "cog_id", "cap", "scp", "trust")
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_PASSPORT_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DELEGATE_ID_FIELD_NUMBER: _ClassVar[int]
    MANDATE_ID_FIELD_NUMBER: _ClassVar[int]
    COG_ID_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    SCP_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    mode: str
    principal_id: str
    agent_passport_id: str
    signature: str
    key_id: str
    delegate_id: str
    mandate_id: str
    cog_id: str
    cap: Scopes
    scp: Scopes
    trust: str
    def __init__(self, mode: _Optional[str] = ..., principal_id: _Optional[str] = ..., agent_passport_id: _Optional[str] = ..., signature: _Optional[str] = ..., key_id: _Optional[str] = ..., delegate_id: _Optional[str] = ..., mandate_id: _Optional[str] = ..., cog_id: _Optional[str] = ..., cap: _Optional[_Union[Scopes, _Mapping]] = ..., scp: _Optional[_Union[Scopes, _Mapping]] = ..., trust: _Optional[str] = ...) -> None: ...

class Scopes(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("agent_id", "capability", "timeout_ms")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    capability: str
    timeout_ms: int
    def __init__(self, agent_id: _Optional[str] = ..., capability: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("arguments_json", "task", "context_json", "attachments")
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_JSON_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    arguments_json: str
    task: str
    context_json: str
    attachments: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, arguments_json: _Optional[str] = ..., task: _Optional[str] = ..., context_json: _Optional[str] = ..., attachments: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class ResponseForm(_message.Message):
    __slots__ = ("stream", "format")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    stream: bool
    format: str
    def __init__(self, stream: _Optional[bool] = ..., format: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("kind", "text", "blob", "url", "data_json", "mime_type", "name", "meta_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    META_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    blob: bytes
    url: str
    data_json: str
    mime_type: str
    name: str
    meta_json: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., blob: _Optional[bytes] = ..., url: _Optional[str] = ..., data_json: _Optional[str] = ..., mime_type: _Optional[str] = ..., name: _Optional[str] = ..., meta_json: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("result", "error", "input_required")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INPUT_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    result: Result
    error: Error
    input_required: InputRequired
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., input_required: _Optional[_Union[InputRequired, _Mapping]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("data_json", "parts", "notes")
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    data_json: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, data_json: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "details_json")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    details_json: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., details_json: _Optional[str] = ...) -> None: ...

class InputRequired(_message.Message):
    __slots__ = ("questions", "continuation")
    class QuestionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Question
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Question, _Mapping]] = ...) -> None: ...
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.MessageMap[str, Question]
    continuation: str
    def __init__(self, questions: _Optional[_Mapping[str, Question]] = ..., continuation: _Optional[str] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("kind", "message", "schema_json", "params_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    schema_json: str
    params_json: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., schema_json: _Optional[str] = ..., params_json: _Optional[str] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("continuation", "answers")
    class AnswersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Answer
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    continuation: str
    answers: _containers.MessageMap[str, Answer]
    def __init__(self, continuation: _Optional[str] = ..., answers: _Optional[_Mapping[str, Answer]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("action", "content_json")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_JSON_FIELD_NUMBER: _ClassVar[int]
    action: str
    content_json: str
    def __init__(self, action: _Optional[str] = ..., content_json: _Optional[str] = ...) -> None: ...

class StreamItem(_message.Message):
    __slots__ = ("event", "outcome")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    event: Event
    outcome: Outcome
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "data_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    data_json: str
    def __init__(self, kind: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("agent_id", "display_name", "description", "version", "tags", "capabilities")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    display_name: str
    description: str
    version: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedCompositeFieldContainer[Capability]
    def __init__(self, agent_id: _Optional[str] = ..., display_name: _Optional[str] = ..., description: _Optional[str] = ..., version: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[_Union[Capability, _Mapping]]] = ...) -> None: ...

class Capability(_message.Message):
    __slots__ = ("name", "description", "input_schema_json", "output_schema_json", "streaming", "modalities", "idempotent", "max_timeout_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENT_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    input_schema_json: str
    output_schema_json: str
    streaming: bool
    modalities: _containers.RepeatedScalarFieldContainer[str]
    idempotent: bool
    max_timeout_ms: int
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema_json: _Optional[str] = ..., output_schema_json: _Optional[str] = ..., streaming: _Optional[bool] = ..., modalities: _Optional[_Iterable[str]] = ..., idempotent: _Optional[bool] = ..., max_timeout_ms: _Optional[int] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: str
    def __init__(self, status: _Optional[str] = ...) -> None: ...
