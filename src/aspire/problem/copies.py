"""Copies of a module, each lent to one call at a time, so that threads never meet in one.

A call puts tensors in the place of the module's parameters and buffers. torch's `functional_call`
does the same for one thread alone, and takes several times as long to get there.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.rnn import PackedSequence

from aspire.problem.failures import calling

# table, entry, key of what is put there, the module's own
Seats = list[tuple[dict[str, Any], str, Any, Tensor]]


@dataclass(frozen=True, eq=False)
class Copy:
    """A module, and where it keeps its parameters and its changing buffers."""

    module: nn.Module
    parameters: Seats
    buffers: Seats

    def call(self, inputs: Any, given: Mapping[str, Tensor], buffers: list[Tensor]) -> Any:
        """What the module gives with these tensors; a buffer that it replaces is replaced here."""
        try:
            for table, leaf, name, _ in self.parameters:
                table[leaf] = given[name]
            for table, leaf, number, _ in self.buffers:
                table[leaf] = buffers[number]
            with calling("the model"):
                return called(self.module, inputs)
        finally:
            for table, leaf, number, own in self.buffers:
                buffers[number] = table[leaf]
                table[leaf] = own
            for table, leaf, _, own in self.parameters:
                table[leaf] = own


class Copies:
    """As many copies of a module as there are calls at one time; the first is the module itself."""

    def __init__(
        self, module: nn.Module, parameters: Iterable[str], buffers: Iterable[str]
    ) -> None:
        self.parameters = {name: name for name in parameters}
        self.buffers = {name: number for number, name in enumerate(buffers)}
        self.pattern = twin(module)  # is never called
        self.free = [self._copy(module)]

    def call(
        self,
        inputs: Any,
        given: Mapping[str, Tensor],
        buffers: list[Tensor],
        *,
        counting: bool = False,
    ) -> Any:
        """As `Copy.call`; counting: batch norm of a module in eval mode counts what comes."""
        try:
            one = self.free.pop()
        except IndexError:
            one = self._copy(twin(self.pattern))
        try:
            with statistics_of(one.module) if counting else nullcontext():
                return one.call(inputs, given, buffers)
        finally:
            self.free.append(one)

    def _copy(self, module: nn.Module) -> Copy:
        return Copy(module, seats(module, self.parameters), seats(module, self.buffers))


def called(module: nn.Module, inputs: Any) -> Any:
    """What it gives for a mapping of inputs by their names, and for several in their order.

    A forward() that does not take them so is handed the whole.
    """
    given, named = arguments_of(module, inputs)
    return module(*given, **named)


def arguments_of(module: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Those in their order, and those by name."""
    if isinstance(inputs, Mapping) and _takes(module, **inputs):
        return (), dict(inputs)
    several = isinstance(inputs, tuple | list) and not isinstance(inputs, PackedSequence)
    if several and _takes(module, *inputs):
        return tuple(inputs), {}
    return (inputs,), {}


def _takes(module: nn.Module, *given: Any, **named: Any) -> bool:
    try:
        inspect.signature(module.forward).bind(*given, **named)
    except TypeError:
        return False
    return True


def twin(module: nn.Module) -> nn.Module:
    """Another module of the same tensors."""
    return copy.deepcopy(module, {id(x): x for _, x in tensors(module)})


def tensors(module: nn.Module, *, all_names: bool = False) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, each under its first name or under all of them."""
    once = not all_names
    return [
        *module.named_parameters(remove_duplicate=once),
        *module.named_buffers(remove_duplicate=once),
    ]


def seats(module: nn.Module, keys: Mapping[str, Any]) -> Seats:
    """Where the parameters or buffers of these names are kept, under all of their names."""
    once = dict(tensors(module))
    known = {id(once[name]): key for name, key in keys.items()}
    found: Seats = []
    for full, x in tensors(module, all_names=True):
        if id(x) in known:
            owner, _, leaf = full.rpartition(".")
            part = module.get_submodule(owner)
            table: dict[str, Any] = part._parameters if leaf in part._parameters else part._buffers
            found.append((table, leaf, known[id(x)], x))
    return found


@contextmanager
def statistics_of(module: nn.Module) -> Iterator[None]:
    """Batch norm of a module in eval mode takes the plain mean over what comes."""
    norms = [m for m in module.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    before = [m.momentum for m in norms]
    for m in norms:
        m.training = True
        m.momentum = None
    try:
        yield
    finally:
        for m, momentum in zip(norms, before, strict=True):
            m.training = False
            m.momentum = momentum
