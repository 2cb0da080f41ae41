"""Cameras that see the same things differently. `aspire train task.py` runs what is defined here.

The images are made up. Look for "your own".
"""

import torch

from aspire.sets import CDNorm

CAMERAS = ("hall", "yard", "gate", "sideways")
SIDE = 12  # pixels
CLASSES = ("one bar", "two bars", "a cross")


def model():
    """A small CNN. Your own: any torch.nn.Module; torchvision's models work, too."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * (SIDE // 4) ** 2, len(CLASSES)),
    )


def sites():
    return list(CAMERAS)


def site(name):
    """The parts of one camera: images of shape (n, channels, height, width), and labels.

    Your own: a part may also be a torch Dataset, such as torchvision's
    ImageFolder(f"{name}/train", transform). Transforms that draw are seeded.
    """
    rng = torch.Generator().manual_seed(sites().index(name))
    y = torch.randint(len(CLASSES), (800,), generator=rng)
    x = torch.stack([drawn(int(label), rng) for label in y])
    if name == "sideways":  # a cross stays one, bars do not
        x = x.rot90(dims=(-2, -1))
    x = x + 0.4 * torch.randn(x.shape, generator=rng)
    return {
        "train": (x[:500], y[:500]),
        "val": (x[500:600], y[500:600]),
        "test": (x[600:], y[600:]),
    }


def drawn(label, rng):
    """One image without noise."""
    image = torch.zeros(1, SIDE, SIDE)
    left, right, row = (int(k) for k in torch.randint(1, SIDE - 2, (3,), generator=rng))
    image[:, :, left] = 1.0
    if label == 1:
        image[:, :, (left + 2 + right) % SIDE] = 1.0
    if label == 2:
        image[:, row, :] = 1.0
    return image


def uncertainty():
    """How far weight may move between cameras; see README.md."""
    return CDNorm(radius=1 / len(CAMERAS), budget=3.0)
