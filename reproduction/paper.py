"""The figures that the paper prints, to stand beside ours.

Jiao, Yang, Song: Distributed Distributionally Robust Optimization with Non-Convex Objectives,
NeurIPS 2022, Tables 1 and 2 and Table E1. Its SHL column has no counterpart among the data that can
be had freely; Daily and Sports Activities is another data set and is compared with nothing.
"""

from __future__ import annotations

from reproduction.table2 import VARIANTS

# data set -> method -> (Acc_w %, its std over runs, Loss_w, its std, Std in points)
Line = tuple[float, float, float, float, float]
TABLE1: dict[str, dict[str, Line]] = {
    "shl": {
        "mix-even": (69.87, 3.10, 0.806, 0.018, 4.81),
        "fedavg": (69.96, 3.07, 0.802, 0.023, 5.21),
        "afl": (78.11, 1.99, 0.582, 0.021, 1.87),
        "drfa-prox": (78.34, 1.46, 0.532, 0.034, 1.85),
        "aspire-ease": (79.16, 1.13, 0.515, 0.019, 1.02),
        "aspire-ease-per": (78.94, 1.27, 0.521, 0.023, 1.36),
    },
    "person-activity": {
        "mix-even": (56.31, 0.69, 1.165, 0.017, 3.00),
        "fedavg": (56.28, 0.63, 1.154, 0.019, 3.13),
        "afl": (58.39, 0.37, 1.081, 0.014, 0.99),
        "drfa-prox": (58.62, 0.16, 1.096, 0.037, 1.26),
        "aspire-ease": (59.43, 0.44, 1.053, 0.010, 0.82),
        "aspire-ease-per": (59.54, 0.21, 1.051, 0.016, 0.79),
    },
    "sc-ma": {
        "mix-even": (49.81, 0.21, 1.424, 0.024, 6.99),
        "fedavg": (49.53, 0.96, 1.441, 0.015, 7.17),
        "afl": (54.56, 0.79, 1.172, 0.018, 3.50),
        "drfa-prox": (54.61, 0.76, 1.151, 0.039, 4.69),
        "aspire-ease": (56.31, 0.29, 1.127, 0.021, 3.16),
        "aspire-ease-per": (56.71, 0.16, 1.119, 0.028, 3.48),
    },
    "fashion-mnist": {
        "mix-even": (66.80, 0.18, 0.784, 0.003, 10.1),
        "fedavg": (66.58, 0.39, 0.781, 0.002, 10.2),
        "afl": (77.32, 0.15, 0.703, 0.001, 1.86),
        "drfa-prox": (77.95, 0.51, 0.702, 0.007, 1.34),
        "aspire-ease": (78.82, 0.07, 0.696, 0.004, 1.01),
        "aspire-ease-per": (78.73, 0.06, 0.698, 0.006, 1.09),
    },
}
# max{Ind_j}: the paper gives Acc_w and Std only
ALONE = {"shl": (19.06, 29.1), "person-activity": (49.38, 8.32), "sc-ma": (22.56, 17.5)}

# Success of the attack in percent
TABLE2: dict[str, dict[str, float]] = {
    "shl": {
        "fedavg": 38.15,
        "mix-even": 36.21,
        "afl": 68.63,
        "drfa-prox": 21.23,
        "aspire-ease": 9.17,
    },
    "person-activity": {
        "fedavg": 33.25,
        "mix-even": 34.32,
        "afl": 43.66,
        "drfa-prox": 27.27,
        "aspire-ease": 22.36,
    },
    "sc-ma": {
        "fedavg": 55.39,
        "mix-even": 52.14,
        "afl": 75.81,
        "drfa-prox": 30.79,
        "aspire-ease": 14.51,
    },
    "fashion-mnist": {
        "fedavg": 82.04,
        "mix-even": 83.18,
        "afl": 90.04,
        "drfa-prox": 63.24,
        "aspire-ease": 45.10,
    },
}

# Theorem 1 and Table E1: T(eps) = O(eps^-a) for a squared gap of eps^2, so the squared gap falls
# like T^(-2/a). GCIVR: a = 2 in its first branch, sqrt(N)/eps^2.
SLOPES = {
    "aspire-consensus": -2.0 / 6.0,
    "aspire-central": -2.0 / 4.0,
    "gda": -2.0 / 6.0,
    "gdmax": -2.0 / 6.0,
    "cover": -2.0 / 3.0,
    "gcivr": -2.0 / 2.0,
    "theorem1": -2.0 / 6.0,
}
WITH_PRIOR = ("drfa-prox", "aspire-ease")  # of table 2: they are told whom not to trust

TITLES = {
    "aspire-ease": "ASPIRE-EASE (the paper's)",
    "aspire-ease-sync": "ASPIRE-EASE(-), synchronous (the paper's)",
    "aspire-cp": "ASPIRE-CP (the paper's)",
    "aspire-ease-per": "ASPIRE-EASE_per (the paper's)",
    "mix-even": "Mix_Even (the paper's)",
    "aspire-consensus": "ASPIRE, consensus form",
    "aspire-consensus-gamma0": "consensus form, Gamma = 0",
    "aspire-consensus-sync": "consensus form, synchronous",
    "aspire-consensus-cp": "consensus form, no plane dropped",
    "aspire-direct": "ASPIRE, direct form",
    "aspire-direct-gamma0": "direct form, Gamma = 0",
    "aspire-central": "ASPIRE, centralised",
    "fedavg": "FedAvg",
    "fedbuff": "FedBuff",
    "afl": "AFL",
    "drfa-prox": "DRFA-Prox",
    "q-ffl": "q-FFL",
    "ind": "max{Ind_j}",
    "gda": "GDA",
    "gdmax": "GDmax",
    "cover": "COVER",
    "gcivr": "GCIVR",
    "fedavg-median": "FedAvg, coordinate-wise median",
    "fedavg-trimmed-mean": "FedAvg, trimmed mean",
    "fedavg-norm-clipping": "FedAvg, norm clipping",
    "fedavg-centred-clipping": "FedAvg, centred clipping",
    "lie-scaled": "consensus form, a site reports w times 1e6",
    "lie-gradient": "consensus form, a site uses its gradient times -100",
    "lie-fixed": "consensus form, a site reports one far-off model",
    "lognormal": "LN(1, 0.4)",
    "theorem1": "two quadratics, preset theorem1",
}
DATASETS = {
    "fashion-mnist": "Fashion-MNIST",
    "person-activity": "Person Activity",
    "sc-ma": "SC-MA",
    "daily-sports": "Daily and Sports Activities",
    "shl": "SHL",
    "synthetic": "no data set",
}


def title(method: str, variant: str = "default") -> str:
    """The name of a row as a reader knows it."""
    cell = VARIANTS.get(method)
    if cell is None:
        named = TITLES.get(method, method.replace("gamma-", "Gamma = "))
    else:
        named = TITLES[cell.name] + cell.title
    return named if variant == "default" else f"{named}, {variant}"
