from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentError,
    AgentNotFound,
    AgentOffline,
    AllAttemptsFailed,
    AuthExpired,
    AuthInvalid,
    BadInput,
    CallerError,
    CallTimeout,
    CapabilityNotFound,
    ErrorTable,
    FabricError,
    Forbidden,
    InternalError,
    RateLimited,
    Unauthenticated,
    UnknownOperation,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_agent,
    error_from_code,
    suggest_nearest,
    translated,
)
from tests.marks import requirement

WORDS = st.text(max_size=30)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | WORDS, lambda inner: st.lists(inner, max_size=3))


@requirement("001-43")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentOffline("x"), "AGENT_OFFLINE"),
        (Unauthenticated(), "AUTH_DENIED"),
        (Forbidden("x"), "AUTH_DENIED"),
        (AuthInvalid(), "AUTH_INVALID"),
        (AuthExpired("x"), "AUTH_EXPIRED"),
        (CapabilityNotFound("a", "b"), "CAPABILITY_NOT_FOUND"),
        (CallTimeout(1), "TIMEOUT"),
        (BadInput("x"), "BAD_INPUT"),
        (UpstreamRefused("x"), "UPSTREAM_ERROR"),
        (UpstreamInterrupted("x"), "UPSTREAM_ERROR"),
        (AgentNotFound("a"), "AGENT_NOT_FOUND"),
        (RateLimited("x", 1), "RATE_LIMITED"),
        (InternalError(), "INTERNAL_ERROR"),
    ],
)
def test_each_error_has_its_documented_code(error: FabricError, code: str) -> None:
    assert error.code == code


@requirement("001-42")
def test_an_error_carries_agent_capability_and_upstream_for_programs() -> None:
    error = UpstreamRefused("no", agent_id="percy", capability="reason", upstream="http://a", nothing=None)
    assert error.details == {"agent_id": "percy", "capability": "reason", "upstream": "http://a"}
    assert error.message == str(error) == "no"


def test_a_misspelt_agent_is_answered_with_the_nearest_one() -> None:
    error = AgentNotFound("percey", ["coder", "percy"])
    assert error.message == "Agent 'percey' not found (nearest: percy). List agents with: a2a-fabric agents"


def test_original_clients_can_tell_unknown_agent_from_unknown_capability_by_the_text() -> None:
    assert "not found" in AgentNotFound("x").message
    said = CapabilityNotFound("percy", "fly", ["reason"]).message
    assert said == "capability 'fly' is not offered by agent 'percy' (it offers: reason)"
    assert "not found" not in said


def test_messages_do_not_grow_with_what_callers_write() -> None:
    long = "x" * 1_000_000
    for error in (AgentNotFound(long), CapabilityNotFound("a", long), UnknownOperation(long, [long])):
        assert len(error.message) < 1000
        assert all(len(str(value)) < 1000 for value in error.details.values())


def test_the_tree_says_what_surely_never_ran() -> None:
    assert all(error.never_ran for error in (AgentOffline("x"), AgentBusy("x"), BadInput("x"), Forbidden("x")))
    assert not any(error.never_ran for error in (CallTimeout(1), UpstreamInterrupted("x"), UpstreamRefused("x")))


@requirement("001-40")
def test_the_exhausted_error_reads_as_documented() -> None:
    error = AllAttemptsFailed("percy", ["percy@node-1: timeout", "percy-backup@node-2: offline"])
    assert error.code == "AGENT_OFFLINE"
    assert error.message == "Agent percy unavailable and all fallbacks failed"
    assert error.details["primary"] == "percy@node-1: timeout"
    assert error.details["fallbacks"] == ["percy-backup@node-2: offline"]


@requirement("001-43")
@given(
    code=st.sampled_from(["BAD_INPUT", "TIMEOUT", "RATE_LIMITED", "AGENT_OFFLINE", "NEW"]) | WORDS,
    message=WORDS,
    details=st.none() | st.dictionaries(WORDS | st.sampled_from(["message", "self", "retry_after"]), VALUES),
)
def test_whatever_an_agent_reports_becomes_one_of_our_errors(
    code: str, message: str, details: dict[str, object] | None
) -> None:  # fmt: skip
    for rebuild in (error_from_code, error_from_agent):
        error = rebuild(code, message, details)
        assert isinstance(error, FabricError)
        assert error.message == message
        assert isinstance(error.reason, str)


def test_an_agents_own_trouble_with_credentials_is_a_refusal_to_our_caller() -> None:
    for code in ("AUTH_DENIED", "AUTH_INVALID", "RATE_LIMITED", "INTERNAL_ERROR", "WHATEVER"):
        error = error_from_agent(code, "no", {"why": "because"})
        assert isinstance(error, UpstreamRefused)
        assert error.details == {"why": "because", "upstream_code": code}


@pytest.mark.parametrize("code", ["BAD_INPUT", "TIMEOUT", "UPSTREAM_ERROR", "AUTH_DENIED", "WHATEVER"])
def test_what_an_agent_reports_is_its_answer(code: str) -> None:
    assert error_from_agent(code, "no").is_answer


@pytest.mark.parametrize(
    "failure", [UpstreamFailed("x"), UpstreamInterrupted("x"), CapabilityNotFound("a", "b"), AgentOffline("x")]
)
def test_an_agent_that_says_itself_that_it_broke_has_not_answered(failure: FabricError) -> None:
    """Neither has one that does not offer what it was asked for. The kind of the failure survives the wire."""
    told = error_from_agent(failure.code, failure.message, failure.details)
    assert (type(told), told.is_answer) == (type(failure), False)


def test_another_gateways_exhausted_call_may_have_run() -> None:
    hops = {"primary": "percy@lab: timeout", "fallbacks": ["backup@lab: offline"]}
    error = error_from_agent("AGENT_OFFLINE", "all failed", hops)
    assert isinstance(error, AgentError)
    assert not error.never_ran
    assert error_from_agent("AGENT_OFFLINE", "down", {}).never_ran


def test_foreign_errors_are_translated_by_the_first_row_that_matches() -> None:
    table: ErrorTable = {ConnectionError: AgentOffline, OSError: UpstreamInterrupted}
    with (
        pytest.raises(AgentOffline, match=r"^nobody$") as caught,
        translated(table, upstream="here"),
    ):
        raise ConnectionRefusedError("nobody")
    assert caught.value.details == {"upstream": "here"}
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_what_the_table_does_not_name_passes_untouched() -> None:
    for error in (KeyError("x"), BadInput("ours")):
        with pytest.raises(type(error)) as caught, translated({OSError: AgentOffline}):
            raise error
        assert caught.value is error


def test_nearest_stays_silent_when_nothing_is_near() -> None:
    assert suggest_nearest("zzz", ["percy"]) == ""


def test_caller_errors_are_not_agent_errors() -> None:
    assert not issubclass(CallerError, AgentError)
    assert not issubclass(RateLimited, AgentError | CallerError)
