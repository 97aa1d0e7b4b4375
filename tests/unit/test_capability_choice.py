"""Which capability answers a message that names none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Input
from a2a_fabric.core.capability_choice import choose_unnamed_capability
from a2a_fabric.core.errors import BadInput
from a2a_fabric.runtimes.context import complete_manifest


def schema(*names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string" if name == "text" else "integer"} for name in names},
        "required": list(names),
    }


def harmless(name: str, description: str, *arguments: str) -> Capability:
    return Capability(name=name, description=description, side_effects="none", input_schema=schema(*arguments))


SUMMARIZE = harmless("summarize", "Make a long text short.", "text")
TRANSLATE = harmless("translate-text", "Into another language.", "text")
ADD = harmless("add", "The sum of two numbers.", "a", "b")
ERASE = Capability(name="erase", side_effects="writes", input_schema=schema("text"))
TALK = Capability(name="chat")


def choose(text: str, *capabilities: Capability, is_learnt: bool = True, **context: Any) -> str:
    call_input = Input(task=text, context=context)
    return choose_unnamed_capability(capabilities, call_input, is_learnt=is_learnt).capability.name


def is_learnt(agent_id: str) -> bool:
    return True


def test_one_capability_needs_no_choice() -> None:
    choice = choose_unnamed_capability([ADD], Input(task="hello"), is_learnt=True)
    assert (choice.capability, choice.reason) == (ADD, None)
    assert choose("hello") == "message"  # of an agent that has not said what it can do


def test_the_declared_default_answers_whatever_the_words_are() -> None:
    default = msgspec.structs.replace(ADD, default=True)
    choice = choose_unnamed_capability([SUMMARIZE, default], Input(task="summarize this"), is_learnt=True)
    assert choice.capability.name == "add"
    assert choice.reason == ("The message names no capability. 'add' answers, because it is the agent's default.")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Please summarize: the quick brown fox", "summarize"),
        ("Translating this would help me", "translate-text"),
        ("translate text please, then summarize nothing", "translate-text"),
        ("what is the sum of 2 and 3", "add"),
        ("say it in the language of poets", "translate-text"),
    ],
)
def test_else_the_words_of_the_message_decide(text: str, name: str) -> None:
    assert choose(text, SUMMARIZE, TRANSLATE, ADD) == name


def test_without_a_common_word_a_capability_for_conversation_answers_and_else_the_first_that_fits() -> None:
    assert choose("good morning", ADD, SUMMARIZE, TALK) == "chat"
    assert choose("good morning", ADD, SUMMARIZE, TRANSLATE) == "summarize"
    assert choose("", SUMMARIZE, ADD, a=1, b=2) == "add"
    assert choose("", SUMMARIZE, ADD, unknown=1) == "summarize"


def test_a_capability_that_changes_something_is_chosen_by_its_whole_name_only() -> None:
    erase = Capability(
        name="erase-files",
        description="Erase old files of a folder.",
        side_effects="writes",
        input_schema=schema("text"),
    )
    assert choose("how old are the files of this folder?", erase, TALK) == "chat"
    assert choose("erase files older than a week", erase, TALK) == "erase-files"


def test_a_capability_that_changes_something_is_not_taken_for_being_first() -> None:
    assert choose("good morning", ERASE, SUMMARIZE) == "summarize"
    assert choose("erase everything", SUMMARIZE, ERASE) == "erase"
    assert choose("good morning", ERASE, ADD) == "add"  # which does not take such input, and says so


def test_a_message_for_an_agent_that_only_changes_things_is_refused_unless_it_names_one_of_them() -> None:
    reset = Capability(name="reset-all", side_effects="writes", input_schema={"type": "object"})
    talk = Capability(name="message", side_effects="writes")
    with pytest.raises(BadInput, match="each of these may change something: reset-all, erase, message"):
        choose("good morning", reset, ERASE, talk)
    assert choose("please reset all", reset, ERASE, talk) == "reset-all"
    assert choose("good morning", ERASE) == "erase"  # the caller named an agent that does nothing else


def test_learnt_typed_capabilities_that_declare_nothing_are_chosen_as_those_that_change_something() -> None:
    """So are tools of MCP servers without annotations. What the operator's own agents declare is theirs to judge."""
    remove, show = (
        Capability(name=name, description="A file of the folder.", input_schema=schema("text"))
        for name in ("remove-file", "show-file")
    )
    for text in ("what is in the folder?", "never remove a single file", "good morning"):
        with pytest.raises(BadInput, match=r"remove-file, show-file\. Name the one you mean"):
            choose(text, remove, show)
    assert choose("what is in the folder?", remove, show, is_learnt=False) == "remove-file"
    assert choose("show file notes", remove, show) == "show-file"
    assert choose("what is in the folder?", remove, show, TALK) == "chat"
    speak = Capability(name="ask", input_schema=schema("text"))
    words = Capability(name="work", input_schema={"properties": {"task": {"type": "string"}}})
    assert choose("good morning", remove, speak) == "ask"
    assert choose("good morning", remove, words) == "work"  # it reads the message itself


def test_arguments_without_words_choose_the_only_capability_that_they_fit() -> None:
    count, again = (Capability(name=name, input_schema=schema("a", "b")) for name in ("count", "count-again"))
    erase = Capability(name="erase-file", input_schema=schema("text"))
    assert choose("", erase, count, a=1, b=2) == "count"
    for capabilities in ((erase, count, again), (erase, msgspec.structs.replace(count, side_effects="writes"))):
        with pytest.raises(BadInput, match="Name the one you mean"):
            choose("", *capabilities, a=1, b=2)


def test_two_defaults_are_refused() -> None:
    one, other = (msgspec.structs.replace(each, default=True) for each in (ADD, TALK))
    with pytest.raises(ValueError, match="only one capability may be the default, not add, chat"):
        Manifest(agent_id="a", endpoint={}, capabilities=(one, other))
    declared = [{"name": name, "default": True} for name in ("x", "y")]
    with pytest.raises(msgspec.ValidationError, match="only one capability may be the default"):
        msgspec.convert({"agent_id": "a", "endpoint": {}, "capabilities": declared}, Manifest)


def test_the_operators_default_wins_over_the_agents_own() -> None:
    operators = Manifest(
        agent_id="a", endpoint={}, capabilities=(msgspec.structs.replace(ADD, default=True), SUMMARIZE)
    )
    agents_own = Manifest(
        agent_id="a", endpoint={}, capabilities=(ADD, msgspec.structs.replace(SUMMARIZE, default=True))
    )
    complete = complete_manifest(operators, agents_own)
    assert [each.name for each in complete.capabilities if each.default] == ["add"]
    nothing_declared = Manifest(agent_id="a", endpoint={}, capabilities=(ADD, SUMMARIZE))
    complete = complete_manifest(nothing_declared, agents_own)
    assert [each.name for each in complete.capabilities if each.default] == ["summarize"]


def test_one_message_reads_only_so_many_words_and_the_next_ones_read_on() -> None:
    """An agent that registers with ever new capabilities holds up no other caller for long."""
    wordy = [Capability(name=f"tool-{number}", description="lorem ipsum " * 40) for number in range(500)]
    wanted = Capability(name="polish", description="Makes things shine.")
    capabilities = [*wordy, wanted]
    rounds = 0
    while choose("can you polish this?", *capabilities) != "polish":
        rounds += 1
        assert rounds < 10
    assert rounds > 1
    assert choose("can you polish this?", *capabilities) == "polish"
