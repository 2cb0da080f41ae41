"""pfl: federated averaging on its simulated backend, all clients a round, one local step each."""

from __future__ import annotations

import logging

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import BATCH, CLIENTS, RATE, measured, network, samples

logging.disable(logging.WARNING)


class Network(nn.Module):
    """The network with the two functions that pfl asks a module for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> dict:
        return {}


def rounds(count: int) -> int:
    module = Network()
    data = dict(enumerate(samples()))
    users = FederatedDataset.from_slices(data, MinimizeReuseUserSampler(list(data)))
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, central)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=count,
            evaluation_frequency=10**9,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=1,
            local_learning_rate=RATE,
            local_batch_size=BATCH,
        ),
        NNEvalHyperParams(local_batch_size=None),
        [],
    )
    return count * CLIENTS


if __name__ == "__main__":
    measured(rounds, 2, 102)
