"""A problem is tried out before it is trained, on a few samples of it.

What the model and the loss take, and how samples are converted to that; whether the loss is a mean
over samples; whether buffers move. What is wrong is said in one sentence with the site's name.
No gradient of a trial counts as a worker's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aspire.arguments import kind, shown
from aspire.problem.advice import advice
from aspire.problem.conversion import (
    RESHAPED,
    Fit,
    changes,
    fits,
    is_dense,
    kinds,
    number,
    real,
)
from aspire.problem.failures import Failed, at, calling
from aspire.problem.objective import LOSSES, Objective, scores_of
from aspire.problem.samples import Samples
from aspire.problem.seeds import seeded
from aspire.problem.values import check_classes, check_values, classes_of

FEW, SOME = 8, 512  # samples that are tried; more where the few give no number
BROADCAST = "that is different to the input size"  # in what torch warns of
SAME = 1e-3  # of a loss: less is rounding
GROWS = 1.2  # what twice as many samples add grows so much: a sum's doubles, a logarithm's does not


Again = Callable[[int], tuple[Any, Any]]  # the samples that are tried, so many times over


class Moves(ValueError):
    """Buffers change while the model trains that were not known to."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"model has a buffer that changes while it trains ({names[0]}): an engine averages "
            "batch-norm statistics only: use GroupNorm or LayerNorm, or freeze it with model.eval()"
        )
        self.names = names


class Trial:
    """What was found out about one objective; samples of a kind that passed are not tried again."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.known: dict[Any, tuple[Fit, list[str], int | None]] = {}
        self.is_mean = objective.loss in LOSSES.values()

    def convert(self, part: Samples, site: int) -> None:
        """Convert the samples to what the model and the loss take, or say why they do not."""
        alike = None if part.pair is None else kinds(*part.pair)
        found = self.known.get(alike)
        if found is None:
            with seeded((0, site)):
                found = self._find(part)
        if alike is not None:
            self.known[alike] = found
        part.convert(*found)

    def _find(self, part: Samples) -> tuple[Fit, list[str], int | None]:
        """The least conversion with which these samples train, in words, and how many classes."""
        few = spread(part.size, FEW)
        given = part.take(few)
        flat = self.objective.flat
        before = generators(flat.start.device)
        said: ValueError | None = None
        seen: set[Any] = set()
        for fit in fits(flat.start.dtype):
            found = fit(*given)
            reshaped = fit.targets in RESHAPED
            unwise = (reshaped or fit.targets is number) and self.objective.labels is not None
            if kinds(*found) in seen or unwise:  # whole numbers are no probabilities
                continue
            seen.add(kinds(*found))
            try:
                output = try_out(self.objective, part, *found)
            except Moves:
                raise
            except ValueError as error:
                if said is None or fit.inputs is fit.targets is real:
                    said = error  # of samples in the right precision, where there are such
                continue
            if reshaped and scores_of(output).shape != found[1].shape:
                continue
            self._judge(part, *found, lambda times: fit(*part.take(few.repeat(times))))  # noqa: B023
            flat.random = flat.random or generators(flat.start.device) != before
            notes = changes("inputs", given[0], found[0]) + changes("targets", given[1], found[1])
            return fit, notes, classes_of(output, found[1])
        assert said is not None
        raise said

    def _judge(self, part: Samples, inputs: Any, targets: Any, again: Again) -> Tensor:
        """In eval mode, as losses are reported: a number, and a mean; 0 and NaN do not tell."""
        one = value_of(self.objective, part, inputs, targets)
        if not self.is_mean:
            if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
                again = partial(repeated, inputs, targets)
            check_mean(self.objective, part, again)
            self.is_mean = bool(torch.isfinite(one)) and float(one) != 0
        return one

    def start(self, part: Samples, site: int) -> None:
        """The loss at the start, of a few samples or of some more, is a number."""
        value = torch.tensor(torch.nan)
        for count in (FEW, SOME):
            some = spread(part.size, count)
            with seeded((0, site)):
                value = self._judge(
                    part,
                    *part.take(some),
                    lambda times: part.take(some.repeat(times)),  # noqa: B023
                )
            if bool(torch.isfinite(value)) and (self.is_mean or count >= part.size):
                return
        if bool(torch.isfinite(value)):
            return
        check_values(self.objective, part)
        raise ValueError(
            f"{part.where}: the loss at the start is {float(value)}: expected a finite number"
        )


def generators(device: torch.device) -> list[bytes]:
    """Where torch's generators stand: it moves when a model or a loss draws."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return [state.numpy().tobytes() for state in states]


def spread(size: int, count: int) -> Tensor:
    """Up to `count` indices, evenly over all samples."""
    return torch.arange(size) if size <= count else torch.arange(count) * size // count


# ---------------------------------------------------------------- one try


def try_out(objective: Objective, part: Samples, inputs: Any, targets: Any) -> Any:
    """The model's output, if the loss of it is one number with a gradient and no buffer moves."""
    module = objective.flat.training
    before = {name: b.clone() for name, b in module.named_buffers()}
    try:
        output = _forwards_and_backwards(objective, part, inputs, targets)
    except Failed as error:
        raise Failed(
            f"{part.where}: the model and the loss do not take inputs of {shape(inputs)} with "
            f"targets of {shape(targets)}: {error}{advice(objective, inputs, targets, error)}",
            error.trace,
        ) from error.__cause__
    moved = [name for name, b in module.named_buffers() if not torch.equal(b, before[name])]
    if moved:
        raise Moves(moved)
    return output


def _forwards_and_backwards(objective: Objective, part: Samples, inputs: Any, targets: Any) -> Any:
    w = objective.flat.start.detach().requires_grad_(True)
    with torch.enable_grad():
        output = objective.run(w, inputs, training=True)
        check_output(objective, part, output, targets)
        if objective.labels is not None:
            known = targets
            if part.pair is not None and isinstance(targets, Tensor):
                known = part.pair[1].reshape(part.size, *targets.shape[1:])
            check_classes(objective, part, inputs, known, classes_of(output, targets))
        value = quiet_mean(objective, part, output, targets)
    check_value(value, part.where)
    with calling("the gradient"):
        torch.autograd.grad(value, w)
    return output


def check_output(objective: Objective, part: Samples, output: Any, targets: Any) -> None:
    """What torch's losses do not take, or would take silently for something else."""
    loss = objective.loss
    where = part.where
    name = loss_name(objective)
    wanted = {"model gives": (output, ", or an output with logits,"), "targets are": (targets, "")}
    for what, (x, or_else) in wanted.items() if objective.of_scores else ():
        if not is_dense(x):
            said = f"{where}: {what} {kind(x)}: expected a tensor{or_else} for the loss {name}"
            raise ValueError(said)
    if loss in (LOSSES["mse"], LOSSES["bce"]) and output.shape != targets.shape:
        raise unlike(where, output, targets, name)
    if loss is LOSSES["cross_entropy"] and output.ndim < 2 and not targets.is_floating_point():
        raise ValueError(
            f"{where}: model gives {shape(output)}: expected (samples, classes) for cross_entropy"
        )


def unlike(where: str, output: Tensor, targets: Tensor, loss: str) -> ValueError:
    return ValueError(
        f"{where}: model gives {shape(output)} and targets have {shape(targets)}: expected the "
        f"same shape for the loss {loss}, which otherwise broadcasts one against the other"
    )


def quiet_mean(objective: Objective, part: Samples, output: Any, targets: Any) -> Any:
    """The loss, unless it broadcasts an output of (n, 1) against targets of (n,)."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        value = objective.mean(output, targets)
    mixed = [w for w in heard if BROADCAST in str(w.message)]
    for w in heard:
        if w not in mixed:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    if mixed or mixes(objective, output, targets, value):
        raise unlike(part.where, output, targets, loss_name(objective))
    return value


def mixes(objective: Objective, output: Any, targets: Any, value: Any) -> bool:
    """Whether it does not matter which target belongs to which output, of unlike shapes.

    The mean over all pairs of an output and a target is the same in any order of the targets. The
    outputs of an untrained model may be all alike, so others stand in for them.
    """
    if not all(map(is_dense, (output, targets, value))) or value.numel() != 1:
        return False
    if output.shape == targets.shape or output.numel() != targets.numel():
        return False
    orders = [targets, targets.roll(1, 0), targets.flip(0)]
    if len(output) != len(targets) or any(torch.equal(targets, t) for t in orders[1:]):
        return False
    places = torch.arange(output.numel(), device=output.device, dtype=torch.float64)
    others = (0.1 + 0.8 * (places * 0.618034).frac()).to(output.dtype).view(output.shape)
    with torch.no_grad():
        first, *rest = (objective.mean(others, t) for t in orders)
    return bool(first != 0) and all(bool((x - first).abs() <= 1e-6 * first.abs()) for x in rest)


def check_value(value: Any, where: str) -> None:
    if not is_dense(value):
        raise ValueError(
            f"{where}: the loss gave {kind(value)}: expected a tensor with one number, the mean "
            "over the samples, that a gradient can be taken of"
        )
    if value.numel() != 1:
        raise ValueError(
            f"{where}: the loss gave {shape(value)}: expected one number, the mean over the "
            "samples, such as reduction='mean' gives"
        )
    if not value.requires_grad:
        raise ValueError(
            f"{where}: the loss does not depend on the model's parameters by any gradient: "
            "expected no detach(), item(), argmax() or no_grad() on the way to it"
        )


# ---------------------------------------------------------------- is it a mean


@torch.no_grad()
def value_of(objective: Objective, part: Samples, inputs: Any, targets: Any) -> Tensor:
    """The loss at the start, in eval mode."""
    flat = objective.flat
    with at(f"{part.where}: in eval mode"):
        value = objective.mean(objective.run(flat.start, inputs, training=False), targets)
    if not is_dense(value) or value.numel() != 1:
        raise ValueError(
            f"{part.where}: the loss gave {shape(value)}: expected one number, the mean over the "
            "samples, such as reduction='mean' gives"
        )
    return value.detach().reshape(())


def repeated(inputs: Tensor, targets: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return torch.cat([inputs] * times), torch.cat([targets] * times)


def check_mean(objective: Objective, part: Samples, again: Again) -> None:
    """A mean stays as it is when every sample is there twice; a sum doubles.

    Losses that draw at random differ from call to call, and those that compare samples with each
    other may grow, but like a logarithm: twice as many samples add the same again.
    """

    def value(times: int) -> Tensor:
        return value_of(objective, part, *again(times))

    one, two = value(1), value(2)
    grown = two - one
    if not bool(grown.abs() > SAME * one.abs()):
        return
    other = torch.stack([value(1) for _ in range(3)])
    chance = (other - one).abs().max()
    more = value(4) - two
    if bool(grown.abs() > 10 * chance) and bool(more / grown > GROWS):
        count = min(part.size, FEW)
        raise ValueError(
            f"{part.where}: the loss {loss_name(objective)} is {float(one):.6g} for {count} "
            f"samples and {float(two):.6g} for the same samples twice: expected a mean, such as "
            "reduction='mean' gives, since a sum grows with the size of a site and distorts the "
            "weights"
        )


def loss_name(objective: Objective) -> str:
    loss = objective.loss
    names = [name for name, known in LOSSES.items() if known is loss]
    return repr(names[0]) if names else shown(loss).strip("<>")


def shape(x: Any) -> str:
    """Shape and type, in words."""
    if not is_dense(x):
        return f"type {type(x).__name__}"
    return f"shape {tuple(x.shape)} and type {str(x.dtype).removeprefix('torch.')}"
