"""Clinics that keep their data: each runs this file, loads its own rows and no others.

The data is made up. Look for "your own".
"""

import torch

from aspire.sets import CDNorm

CLINICS = ("north", "south", "west")
FEATURES = 6


def model():
    """Called by the server and at every site. Your own: any torch.nn.Module."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    )


def sites():
    """The names of the sites, which are those in their certificates."""
    return list(CLINICS)


def site(name):
    """The parts of one site. Called at that site alone, never by the server.

    Your own: read files that lie at the site, as in table = pandas.read_csv("/data/rows.csv").
    """
    rng = torch.Generator().manual_seed(sites().index(name))
    x = torch.randn(600, FEATURES, generator=rng)
    own = 2.0 if name == "west" else 0.0
    y = (x[:, 0] - x[:, 1] + own * x[:, 2] + 0.5 * torch.randn(600, generator=rng) > 0).long()
    return {
        "train": (x[:300], y[:300]),
        "val": (x[300:400], y[300:400]),
        "test": (x[400:], y[400:]),
    }


def uncertainty():
    """How far weight may move between clinics. Called by the server alone."""
    return CDNorm(radius=1 / len(CLINICS), budget=2.0)
