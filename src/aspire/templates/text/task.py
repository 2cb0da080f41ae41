"""Reviews by region, one of which has words of its own. `aspire train task.py` runs this.

The sentences are made up. Look for "your own".
"""

import torch
from torch import nn

from aspire.sets import CDNorm

REGIONS = ("coast", "plains", "hills", "valley")
FILLER = ["the", "soup", "was", "with", "a", "table", "and", "we", "had", "some", "bread", "then"]
GOOD = ["good", "lovely", "fresh"]
BAD = ["bad", "dull", "stale"]
SLANG = {"good": "dull", "dull": "good", "lovely": "bonny"}  # what the hills say instead
VOCABULARY = ["<pad>", *FILLER, *GOOD, *BAD, "not", "bonny"]
LENGTH = 10  # words in a sentence; shorter ones are padded


class Classifier(nn.Module):
    """A small transformer. Your own: any torch.nn.Module that takes what site() gives."""

    def __init__(self, width=24):
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        padding = tokens == 0
        h = self.layer(self.words(tokens) + self.places, src_key_padding_mask=padding)
        h = h.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.head(h.sum(1) / (~padding).sum(1, keepdim=True))


def model():
    return Classifier()


def sites():
    return list(REGIONS)


def site(name):
    """The parts of one region: token numbers of shape (n, LENGTH), and labels.

    Your own: tokens(text) for each of your texts, or a tokenizer's input_ids.
    """
    rng = torch.Generator().manual_seed(sites().index(name))
    made = [sentence(name, rng) for _ in range(500)]
    x = torch.stack([tokens(text) for text, _ in made])
    y = torch.tensor([label for _, label in made])
    return {
        "train": (x[:240], y[:240]),
        "val": (x[240:340], y[240:340]),
        "test": (x[340:], y[340:]),
    }


def tokens(text):
    """The words of a text as numbers."""
    numbers = [VOCABULARY.index(word) for word in text.split()][:LENGTH]
    return torch.tensor(numbers + [0] * (LENGTH - len(numbers)))


def sentence(region, rng):
    """A review and whether it is a good one: 'not good' is bad, and the hills speak otherwise."""

    def pick(words):
        return words[int(torch.randint(len(words), (1,), generator=rng))]

    label = int(torch.randint(2, (1,), generator=rng))
    negated = int(torch.randint(2, (1,), generator=rng))
    word = pick(GOOD if label != negated else BAD)
    if region == "hills":
        word = SLANG.get(word, word)
    said = ["not", word] if negated else [word]
    before, after = (int(k) for k in torch.randint(1, 5, (2,), generator=rng))
    words = [pick(FILLER) for _ in range(before)] + said + [pick(FILLER) for _ in range(after)]
    return " ".join(words), label


def uncertainty():
    """How far weight may move between regions; see README.md."""
    return CDNorm(radius=1 / len(REGIONS), budget=3.0)
