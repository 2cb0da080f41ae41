"""FedLab: its serial trainer and server handlers, one local step a client.

python fed_lab.py            synchronous: federated averaging over all clients
python fed_lab.py --async    its asynchronous handler, one client after the other; no clock
"""

from __future__ import annotations

import sys

import torch
from work import BATCH, CLIENTS, RATE, measured, network, samples, without_torchvision

without_torchvision()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import (  # noqa: E402
    AsyncServerHandler,
    SyncServerHandler,
)
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Quiet:
    """A logger that says nothing."""

    def info(self, *words: object) -> None:
        pass


class Batches:
    """One batch a client, so that one local epoch is one local step; no loader's cost a sample."""

    def __init__(self) -> None:
        self.parts = samples(BATCH)

    def get_dataloader(self, client: int, batch_size: int) -> list[tuple[torch.Tensor, ...]]:
        return [self.parts[client]]


class Silent(StandalonePipeline):
    def evaluate(self) -> None:
        pass


def trainer(data: Batches) -> SGDSerialClientTrainer:
    made = SGDSerialClientTrainer(network(), CLIENTS, logger=Quiet())
    made.setup_dataset(data)
    made.setup_optim(1, BATCH, RATE)
    return made


def synchronous(count: int) -> int:
    handler = SyncServerHandler(network(), count, 1.0, logger=Quiet())
    Silent(handler, trainer(Batches())).main()
    return count * CLIENTS


def asynchronous(count: int) -> int:
    handler = AsyncServerHandler(network(), count * CLIENTS, logger=Quiet())
    clients = trainer(Batches())
    handler.setup_optim(0.5)
    while not handler.if_stop:
        parameters, time = handler.downlink_package
        clients.local_process([parameters], [handler.round % CLIENTS])
        handler.load([clients.uplink_package[0][0], time])
    return count * CLIENTS


if __name__ == "__main__":
    measured(asynchronous if "--async" in sys.argv else synchronous, 2, 102)
