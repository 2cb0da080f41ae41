"""A transformer that was pretrained, and adapters: only low-rank updates and the head train.

The text is made up: each topic is a random Markov chain over a small vocabulary, and a site speaks
a dialect that replaces some words. The transformer learns to predict the next word of the topics
without any dialect (a short seeded training on text that no site holds). Then it is frozen, each
of its attention layers gets adapters, and the sites train these and a head to tell the topic.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reproduction.networks.data import Sites
from reproduction.networks.models import Attention, Block

TOPICS = 8
WORDS = 64
LENGTH = 24
SITES = 8
TEXTS = (1500, 400)  # of a site, for training and for testing
SHARPNESS = 1.2  # of a topic's transitions: the standard deviation of their logits
FAVOUR = 0.8  # standard deviation of the logits by which a topic likes a word
TOPIC_SHARES = 1.0  # Dirichlet over the topics of a site
STRONGEST = 0.3  # share of the words that the last site's dialect replaces
RANK = 4
SCALE = 2.0
STEPS = 200
BATCH = 64
RATE = 2e-3
SOURCE, TEXT = 61, 62  # purposes: streams that share no numbers


# ---------------------------------------------------------------- text


def chains() -> NDArray[Any]:
    """The transitions of every topic, the same for all seeds: (topics, words, words)."""
    rng = np.random.default_rng([SOURCE])
    common = rng.standard_normal((WORDS, WORDS))
    own = rng.standard_normal((TOPICS, WORDS, WORDS))
    favourites = rng.standard_normal((TOPICS, 1, WORDS))
    odds = np.exp(SHARPNESS * (common + own) + FAVOUR * favourites)
    return odds / odds.sum(axis=2, keepdims=True)


def written(rng: np.random.Generator, topics: NDArray[Any]) -> NDArray[np.int64]:
    """A text on each of these topics, (texts, LENGTH)."""
    sums = chains().cumsum(axis=2)
    made = np.empty((len(topics), LENGTH), dtype=np.int64)
    made[:, 0] = rng.integers(WORDS, size=len(topics))
    for place in range(1, LENGTH):
        drawn = rng.random((len(topics), 1))
        made[:, place] = (sums[topics, made[:, place - 1]] < drawn).sum(axis=1).clip(0, WORDS - 1)
    return made


def texts(seed: int, *, small: bool) -> Sites:
    """Texts by site: its own mix of topics, and a dialect that grows with its number."""
    made: Sites = {}
    for j in range(SITES):
        rng = np.random.default_rng([TEXT, seed, j])
        shares = rng.dirichlet(np.full(TOPICS, TOPIC_SHARES))
        dialect = rng.permutation(WORDS)
        strength = STRONGEST * j / (SITES - 1)
        made[f"site {j}"] = {}
        for part, count in zip(("train", "test"), TEXTS, strict=True):
            topics = rng.choice(TOPICS, size=count // (3 if small else 1), p=shares)
            words = written(rng, topics)
            words = np.where(rng.random(words.shape) < strength, dialect[words], words)
            made[f"site {j}"][part] = (torch.from_numpy(words), torch.from_numpy(topics))
    return made


# ---------------------------------------------------------------- the model


class Adapted(nn.Module):
    """A frozen linear layer plus a low-rank update B A, which starts at zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + SCALE / RANK * (x @ self.down.T @ self.up.T)


class Language(nn.Module):
    """Words, positions, causal blocks; `head` predicts the next word."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, WORDS)

    def features(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions[: words.shape[1]]
        return self.norm(self.blocks(x))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.features(words))


class Topic(nn.Module):
    """The pretrained transformer, frozen, with adapters; a linear head on the mean over words."""

    def __init__(self, language: Language) -> None:
        super().__init__()
        self.language = language.requires_grad_(False)
        for layer in [x for x in language.modules() if isinstance(x, Attention)]:
            layer.add_module("qkv", Adapted(layer.qkv))
            layer.add_module("out", Adapted(layer.out))
        self.head = nn.Linear(language.words.embedding_dim, TOPICS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.language.features(words).mean(1))


@lru_cache(maxsize=2)
def pretrained(dim: int, depth: int, heads: int) -> Language:
    """Trained on source text to predict the next word; the same for all seeds. On the CPU."""
    rng = np.random.default_rng([SOURCE, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SOURCE)
        language = Language(dim, depth, heads)
    optimizer = torch.optim.Adam(language.parameters(), lr=RATE)
    for _ in range(STEPS):
        words = torch.from_numpy(written(rng, rng.integers(TOPICS, size=BATCH)))
        scores = language(words[:, :-1]).flatten(0, 1)
        loss = cross_entropy(scores, words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return language


def adapted(dim: int, depth: int, heads: int) -> nn.Module:
    return Topic(copy.deepcopy(pretrained(dim, depth, heads)))
