"""What to train; the same file runs with `aspire train digits/problem.py`."""

import torch
from sklearn.datasets import load_digits

NAMES = ["north", "east", "sideways"]


def model():
    return torch.nn.Linear(64, 10)


def sites():
    return NAMES


def site(name):
    """This site's third of the digits, 400 images to train on and the rest to test on."""
    digits, j = load_digits(), NAMES.index(name)
    images = torch.tensor(digits.images[j::3], dtype=torch.float32) / 16
    if name == "sideways":
        images = images.rot90(dims=(1, 2))
    inputs, targets = images.flatten(1), torch.tensor(digits.target[j::3])
    return {"train": (inputs[:400], targets[:400]), "test": (inputs[400:], targets[400:])}
