"""Turns sentences into vectors with a sentence model of the BERT kind, computed with NumPy alone.

The folder of such a model has `config.json`, `model.safetensors` and `tokenizer.json`. A sentence's vector is the mean
of its tokens' vectors, of length 1, so the product of two vectors says how near two sentences are. Import this module
on use: NumPy, safetensors and tokenizers belong to the extra `semantic`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer

from a2a_fabric.core.errors import ConfigError

Vectors = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

MAX_TOKENS = 128  # of a sentence; what is beyond is not read
_HIDDEN = -1e9  # added to the attention of padding


class _ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"


class SentenceEncoder:
    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the folder has no model that this class can compute."""
        try:
            self._config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_ModelConfig)
            weights = load_file(folder / "model.safetensors")
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as exc:  # each of the three libraries has errors of its own
            raise ConfigError(f"federation.semantic: the model in {folder} cannot be read: {exc}") from exc
        if self._config.model_type != "bert" or self._config.hidden_act != "gelu":
            raise ConfigError(f"federation.semantic: the model in {folder} is not of the kind `bert` with `gelu`")
        self._weights = {name.removeprefix("bert."): value.astype(np.float32) for name, value in weights.items()}
        threadpool_limits(1)  # several threads would wait for one another on the cores that the node needs
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, sentences: Sequence[str]) -> Vectors:
        """One row for each sentence."""
        encodings = self._tokenizer.encode_batch(list(sentences))
        longest = max(len(each.ids) for each in encodings)
        ids = np.zeros((len(encodings), longest), np.int64)
        mask = np.zeros((len(encodings), longest), np.float32)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1.0
        states = self._embed(ids)
        for layer in range(self._config.num_hidden_layers):
            states = self._apply_layer(states, mask, f"encoder.layer.{layer}")
        sums: Vectors = (states * mask[:, :, None]).sum(axis=1)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        vectors: Vectors = sums / np.maximum(norms, 1e-12)
        return vectors

    def _embed(self, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Vectors:
        weights = self._weights
        words = weights["embeddings.word_embeddings.weight"][ids]
        positions = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        return self._normalize(words + positions + kinds, "embeddings.LayerNorm")

    def _apply_layer(self, states: Vectors, mask: Vectors, name: str) -> Vectors:
        attended = self._attend(states, mask, f"{name}.attention.self")
        states = self._normalize(
            self._multiply(attended, f"{name}.attention.output.dense") + states, f"{name}.attention.output.LayerNorm"
        )
        inner = _gelu(self._multiply(states, f"{name}.intermediate.dense"))
        return self._normalize(self._multiply(inner, f"{name}.output.dense") + states, f"{name}.output.LayerNorm")

    def _attend(self, states: Vectors, mask: Vectors, name: str) -> Vectors:
        count, length, size = states.shape
        heads = self._config.num_attention_heads
        query, key, value = (
            self._multiply(states, f"{name}.{part}").reshape(count, length, heads, size // heads).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(size // heads)
        scores += ((1.0 - mask) * _HIDDEN)[:, None, None, :]
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        joined: Vectors = (shares @ value).transpose(0, 2, 1, 3).reshape(count, length, size)
        return joined

    def _multiply(self, states: Vectors, name: str) -> Vectors:
        weight = self._weights[f"{name}.weight"]
        flat = states.reshape(-1, weight.shape[1]) @ weight.T  # one product is much faster than one for each sentence
        product: Vectors = (flat + self._weights[f"{name}.bias"]).reshape(*states.shape[:-1], weight.shape[0])
        return product

    def _normalize(self, states: Vectors, name: str) -> Vectors:
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._config.layer_norm_eps)
        normal: Vectors = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normal


def _gelu(values: Vectors) -> Vectors:
    """With the error function as Abramowitz and Stegun approximate it (7.1.26), to seven digits."""
    scaled = np.abs(values) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * scaled)
    polynomial = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    error = np.sign(values) * (1.0 - polynomial * np.exp(-scaled * scaled))
    activated: Vectors = (0.5 * values * (1.0 + error)).astype(np.float32)
    return activated
