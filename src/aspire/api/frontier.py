"""The price of robustness: what every site gets at each setting of the dial, and what is read off.

Settings are chosen by accuracies on val parts and reported by those on test parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aspire.api.run import Run
from aspire.arguments import real_number, shown
from aspire.problem.intervals import wilson
from aspire.runs import files as rundir
from aspire.types import Array, Mask

JSON = "frontier.json"
Band = tuple[Array, Array]  # lower and upper ends


@dataclass(frozen=True)
class Setting:
    """One setting of the dial. Arrays are in the order of the sites."""

    value: float
    val: Array  # accuracies on the val parts
    test: Array  # and on the test parts
    weights: Array
    run: Run | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Answer:
    """What `floor` means for every site.

    floor    the accuracy that no site should fall below
    chosen   the number of the smallest setting at which every site reaches it; None: at none
    closest  the number of the setting with the largest worst accuracy
    reach    by site, the number of the first setting at which it reaches the floor; None: at none
    """

    floor: float
    chosen: int | None
    closest: int
    reach: tuple[int | None, ...]

    @property
    def setting(self) -> int:
        """The number of the setting that it is about: the chosen one, else the closest."""
        return self.closest if self.chosen is None else self.chosen


@dataclass(frozen=True, repr=False)
class Frontier:
    """What `aspire.frontier` gives.

    dial                       the argument of the set that was swept, such as 'budget'
    sites                      their names
    settings                   by rising value; `settings[k].run` is the run, with its model
    val_samples, test_samples  how many samples each site's accuracies are on
    gradients                  that the whole sweep cost
    """

    dial: str
    sites: tuple[str, ...]
    settings: tuple[Setting, ...]
    val_samples: Array
    test_samples: Array
    gradients: int

    @property
    def knee(self) -> int:
        """The number of the smallest setting whose worst val accuracy is within one standard error
        of the largest one."""
        worst = self.worst_val()
        best = int(worst.argmax())
        j = int(self.settings[best].val.argmin())
        error = np.sqrt(worst[best] * (1 - worst[best]) / self.val_samples[j])
        return int(np.flatnonzero(worst >= worst[best] - error)[0])

    def worst_val(self) -> Array:
        """The worst site's accuracy on val, by setting."""
        return np.array([setting.val.min() for setting in self.settings])

    def answer(self, floor: float) -> Answer:
        """The smallest setting at which every site reaches `floor`, and who reaches it where."""
        check_floor(floor)
        there = np.array([setting.val >= floor for setting in self.settings])
        everywhere = self.worst_val() >= floor
        closest = int(self.worst_val().argmax())
        return Answer(floor, _first(everywhere), closest, tuple(map(_first, there.T)))

    def intervals(self, k: int) -> Band:
        """Wilson's intervals of the accuracies on test at setting k, with 95 %, by site."""
        shares = zip(self.settings[k].test, self.test_samples, strict=True)
        low, high = np.array([wilson(round(share * n), int(n)) for share, n in shares]).T
        return low, high

    def price(self, k: int, against: int = 0) -> tuple[Array, Band]:
        """What each site's accuracy on test changes by from one setting to another.

        The intervals are Newcombe's, of two independent samples. Both models are scored on the same
        samples, so that they are rather too wide.
        """
        before, after = self.settings[against].test, self.settings[k].test
        (low, high), (low_after, high_after) = self.intervals(against), self.intervals(k)
        change = after - before
        lower = change - np.hypot(after - low_after, high - before)
        upper = change + np.hypot(high_after - after, before - low)
        return change, (lower, upper)

    def result(self, floor: float | None = None) -> dict[str, Any]:
        """What frontier.json holds."""
        return {
            "dial": self.dial,
            "sites": self.sites,
            "val_samples": self.val_samples.astype(int),
            "test_samples": self.test_samples.astype(int),
            "gradients": self.gradients,
            "knee": self.settings[self.knee].value,
            "settings": [self._told(k) for k in range(len(self.settings))],
            "answer": None if floor is None else self._answered(self.answer(floor)),
        }

    def _told(self, k: int) -> dict[str, Any]:
        setting = self.settings[k]
        change, band = self.price(k)
        return {
            "value": setting.value,
            "weights": setting.weights,
            "val_accuracies": setting.val,
            "test_accuracies": setting.test,
            "test_intervals": self.intervals(k),
            "price": change,
            "price_intervals": band,
            "worst_val_accuracy": setting.val.min(),
            "worst_test_accuracy": setting.test.min(),
            "mean_test_accuracy": setting.test.mean(),
        }

    def _answered(self, answer: Answer) -> dict[str, Any]:
        value = [setting.value for setting in self.settings]
        return {
            "floor": answer.floor,
            "chosen": None if answer.chosen is None else value[answer.chosen],
            "closest": value[answer.closest],
            "reach": {
                site: None if k is None else value[k]
                for site, k in zip(self.sites, answer.reach, strict=True)
            },
        }

    def __repr__(self) -> str:
        from aspire.api.frontier_words import in_words

        return in_words(self)

    def save(self, directory: str | Path, floor: float | None = None) -> None:
        """Write frontier.json, and each setting's run in a folder of its own, to a new folder."""
        folder = rundir.new_folder(Path(directory))
        for setting in self.settings:
            if setting.run is not None:
                setting.run.save(folder / f"{self.dial}-{setting.value:g}")
        rundir.write_json(folder / JSON, self.result(floor))


def check_floor(floor: Any) -> None:
    expected = "an accuracy above 0 and up to 1, such as 0.8"
    if real_number("floor", floor, expected, above=0.0) > 1:
        raise ValueError(f"floor={shown(floor)}: expected {expected}")


def _first(there: Mask) -> int | None:
    found = np.flatnonzero(there)
    return int(found[0]) if len(found) else None
