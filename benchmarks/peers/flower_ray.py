"""Flower: federated averaging in its simulation on Ray, all clients a round, one step each."""

from __future__ import annotations

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from work import BATCH, CLIENTS, RATE, measured, network, samples

client = ClientApp()


@cache
def held() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    return samples(BATCH)


@client.train()
def train(message: Message, context: Context) -> Message:
    inputs, targets = held()[int(context.node_config["partition-id"])]
    module = network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    nn.functional.cross_entropy(module(inputs), targets).backward()
    optimizer.step()
    found = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": BATCH}),
    }
    return Message(content=RecordDict(found), reply_to=message)


def rounds(count: int) -> int:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=CLIENTS,
            min_available_nodes=CLIENTS,
        )
        start = ArrayRecord(network().state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=count)

    here = {"address": "local", "include_dashboard": False, "num_cpus": 2}
    one = {"num_cpus": 1, "num_gpus": 0.0}
    config = {"init_args": here, "client_resources": one}
    run_simulation(server, client, CLIENTS, backend_config=config)
    return count * CLIENTS


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    measured(rounds, 1, 6, processes=True)
