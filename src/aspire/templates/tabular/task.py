"""Hospitals with patients as rows of a table. `aspire train task.py` runs what is defined here.

The data is made up. Look for "your own".
"""

import torch

from aspire.sets import CDNorm

HOSPITALS = {"north": 0.0, "east": 0.3, "south": -0.2, "west": 0.2, "island": 3.0}
FEATURES = 6


def model():
    """Your own: any torch.nn.Module; a torch optimiser and the step sizes are chosen for you."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    )


def sites():
    """The names of the sites. Your own: the names of your files, for example."""
    return list(HOSPITALS)


def site(name):
    """The parts of one site: train, val to choose the model by, test to report.

    Your own, with pandas: table = pandas.read_csv(f"{name}.csv"), then a part is
    (table[["age", "pressure"]], table["ill"]). Numpy arrays, tensors and datasets do as well.
    """
    rng = torch.Generator().manual_seed(sites().index(name))
    x = torch.randn(1500, FEATURES, generator=rng)
    noise = 0.3 * torch.randn(1500, generator=rng)
    # The same signs of illness everywhere, but for one that counts more on the island.
    y = (x[:, 0] - x[:, 1] + HOSPITALS[name] * x[:, 2] + noise > 0).long()
    return {
        "train": (x[:500], y[:500]),
        "val": (x[500:1000], y[500:1000]),
        "test": (x[1000:], y[1000:]),
    }


def uncertainty():
    """How far weight may move from one hospital to another.

    Each weight stays within `radius` of 1/5. `budget` (Gamma) counts the hospitals that may use
    their whole radius: 0 trains with even weights. `aspire frontier task.py` shows what it costs.
    """
    return CDNorm(radius=1 / len(HOSPITALS), budget=4.0)


# Your own, optional: loss(), method(), optimizer(groups), schedule(optimizer), reference().
