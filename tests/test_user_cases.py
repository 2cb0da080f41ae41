"""What users bring: models, losses and kinds of data, each with each that goes with it.

Every case trains for a few steps, or is refused with the one sentence that says what to do. What is
raised is a ValueError of ours, whose sentence names the site or the argument.
"""

from __future__ import annotations

import math
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from aspire import train
from aspire.problem.problem import build

QUICK = {"iterations": 4, "batch_size": 8, "evaluate_every": 2, "form": "direct"}
N = 24
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(N, 4, generator=DRAW)
Y = (X[:, 0] > 0).long()
REAL = X[:, :1] + 0.1
LABELS = (X[:, :3] > 0).long()  # three questions with yes or no
IMAGES = torch.randn(N, 1, 8, 8, generator=DRAW)
TOKENS = torch.randint(1, 20, (N, 6), generator=DRAW)
MASK = torch.ones(N, 6, dtype=torch.long)
LENGTHS = [2 + i % 5 for i in range(N)]
RAGGED = [TOKENS[i, : min(6, LENGTHS[i])] for i in range(N)]

# ---------------------------------------------------------------- models


def seeded(make):
    torch.manual_seed(0)
    return make()


def mlp(outputs=2):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


def linear(outputs=2):
    return nn.Linear(4, outputs)


def lazy(outputs=2):
    return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(outputs))


def lazy_cnn():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def cnn(outputs=2):
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16, outputs))


class Residual(nn.Module):
    """A small ResNet: two blocks with batch norm."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm, self.second = norm(4), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        x = x + self.second(F.relu(self.norm(x)))
        return self.last(x.mean((2, 3)))


class Adapter(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 2), nn.Linear(2, layer.out_features)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Transformer(nn.Module):
    """Of text, with adapters in its feed-forward part; inputs by name, logits among the outputs."""

    def __init__(self, adapted=True, out=lambda logits: logits):
        super().__init__()
        self.embed = nn.Embedding(20, 8).requires_grad_(False)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        if adapted:
            self.block.requires_grad_(False)
            self.block.linear1 = Adapter(self.block.linear1)
        self.head, self.out = nn.Linear(8, 2), out

    def forward(self, input_ids, attention_mask=None):
        hidden = self.embed(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask.unsqueeze(2)
        attended = self.block.self_attn(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.block.norm1(hidden + attended)
        hidden = hidden + self.block.linear2(F.relu(self.block.linear1(hidden)))
        return self.out(self.head(hidden.mean(1)))


class Output(SimpleNamespace):
    """As those of Hugging Face's models."""


def with_logits(logits):
    return Output(logits=logits, hidden_states=None)


class Recurrent(nn.Module):
    """An LSTM over padded sequences and their lengths."""

    def __init__(self, give=lambda output, hidden, head: head(hidden)):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.head, self.give = nn.Linear(8, 2), give

    def forward(self, tokens, lengths=None):
        x = self.embed(tokens)
        if lengths is not None:
            x = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, (hidden, _) = self.lstm(x)
        return self.give(output, hidden[-1], self.head)


class Tied(nn.Module):
    """The decoder has the encoder's weight."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.encode(x)))


class Two(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, first, second):
        return self.layer(torch.cat([first, second], 1))


class Whole(nn.Module):
    """Takes a mapping as one argument."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch):
        return self.layer(batch["x"])


class Giving(nn.Module):
    """A linear layer with something after it."""

    def __init__(self, after, outputs=2):
        super().__init__()
        self.layer, self.after = nn.Linear(4, outputs), after

    def forward(self, x):
        return self.after(self.layer(x))


# ---------------------------------------------------------------- data


class Rows(Dataset):
    def __init__(self, item, size=N):
        self.item, self.size = item, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i >= self.size:
            raise IndexError(i)
        return self.item(i)


class Plain:
    """No Dataset, but with a length and items."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return X[i], Y[i]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def pad(items):
    """Ragged sequences to ((tokens, lengths), labels)."""
    lengths = torch.tensor([len(x) for x, _ in items])
    tokens = pad_sequence([x for x, _ in items], batch_first=True)
    return (tokens, lengths), torch.tensor([int(y) for _, y in items])


def pad_by_name(items):
    (tokens, lengths), labels = pad(items)
    return {"tokens": tokens, "lengths": lengths, "labels": labels}


def hugging_face(text=False):
    datasets = pytest.importorskip("datasets")
    columns = {"input_ids": TOKENS.tolist(), "attention_mask": MASK.tolist(), "label": Y.tolist()}
    return datasets.Dataset.from_dict(columns | ({"text": ["a"] * N} if text else {}))


FRAME = pandas.DataFrame(X.numpy(), columns=list("abcd")).assign(sick=Y.numpy(), dose=X[:, 1])
NAMED = FRAME.assign(city="Ulm")[["a", "b", "c", "city", "sick"]]
FEATURES = FRAME[["a", "b", "c", "d", "sick"]]
RAGGED_ROWS = Rows(lambda i: (RAGGED[i], Y[i]))
BY_NAME = {"input_ids": TOKENS, "attention_mask": MASK, "labels": Y}
PAIR, REALS, MULTI, PICTURES, TEXT = (X, Y), (X, REAL), (X, LABELS), (IMAGES, Y), (TOKENS, Y)

# ---------------------------------------------------------------- the matrix
# name: model, one site's data, other arguments, and what the sentence holds (None: it trains)

TRAINED = {
    # models, with tensors
    "mlp": (mlp, PAIR, {}),
    "linear": (linear, PAIR, {}),
    "linear, consensus form": (linear, PAIR, {"form": "consensus"}),
    "cnn": (cnn, PICTURES, {}),
    "resnet with batch norm": (Residual, PICTURES, {}),
    "resnet, own statistics": (Residual, PICTURES, {"buffers": "site"}),
    "resnet with instance norm": (partial(Residual, nn.InstanceNorm2d), PICTURES, {}),
    "resnet of one sample": (Residual, (IMAGES[:1], Y[:1]), {}),
    "transformer": (partial(Transformer, adapted=False), TEXT, {}),
    "transformer with adapters": (Transformer, TEXT, {}),
    "lstm": (Recurrent, TEXT, {}),
    "tied weights": (Tied, (X, X), {"loss": "mse"}),
    "lazy layers": (lazy, PAIR, {}),
    "lazy layers, float64 arrays": (lazy, (X.double().numpy(), Y.numpy()), {}),
    "lazy convolution": (lazy_cnn, PICTURES, {}),
    "two inputs": (Two, ((X, X[:, :2]), Y), {}),
    "two inputs by name": (Two, {"second": X[:, :2], "first": X, "label": Y}, {}),
    "a mapping as one argument": (Whole, ({"x": X}, Y), {}),
    "outputs with logits": (partial(Transformer, out=with_logits), TEXT, {}),
    "outputs in a mapping": (partial(Giving, lambda x: {"logits": x, "more": None}), PAIR, {}),
    "outputs for the user's loss": (
        partial(Giving, lambda x: {"a": x, "b": x}),
        PAIR,
        {"loss": lambda o, y: F.cross_entropy(o["a"] + o["b"], y)},
    ),
    # losses
    "mse": (partial(mlp, 1), REALS, {"loss": "mse"}),
    "mse, a vector of targets": (partial(mlp, 1), (X, REAL[:, 0]), {"loss": "mse"}),
    "MSELoss, whole numbers": (partial(mlp, 1), (X, Y), {"loss": nn.MSELoss()}),
    "huber": (partial(linear, 1), REALS, {"loss": nn.HuberLoss()}),
    "poisson": (partial(mlp, 1), (X, Y), {"loss": nn.PoissonNLLLoss()}),
    "gaussian of the user's": (
        mlp,
        (X, REAL[:, 0]),
        {"loss": lambda o, y: F.gaussian_nll_loss(o[:, 0], y, F.softplus(o[:, 1]) + 0.1)},
    ),
    "bce, one logit": (partial(mlp, 1), (X, Y), {"loss": "bce"}),
    "bce, one logit without an axis": (
        lambda: nn.Sequential(mlp(1), nn.Flatten(0)),
        (X, Y.bool()),
        {"loss": "bce"},
    ),
    "bce, many labels": (partial(mlp, 3), MULTI, {"loss": "bce"}),
    "BCEWithLogitsLoss, weights": (
        partial(mlp, 3),
        (X, LABELS.float()),
        {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]))},
    ),
    "BCELoss after a sigmoid": (
        lambda: nn.Sequential(mlp(1), nn.Sigmoid()),
        (X, Y),
        {"loss": nn.BCELoss()},
    ),
    "MultiLabelSoftMarginLoss": (partial(mlp, 3), MULTI, {"loss": nn.MultiLabelSoftMarginLoss()}),
    "class weights": (
        mlp,
        PAIR,
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))},
    ),
    "label smoothing": (mlp, PAIR, {"loss": partial(F.cross_entropy, label_smoothing=0.1)}),
    "focal loss of the user's": (
        mlp,
        PAIR,
        {
            "loss": lambda o, y: (
                (1 - (p := o.softmax(1).gather(1, y[:, None]))) ** 2 * -p.log()
            ).mean()
        },
    ),
    "probabilities as targets": (mlp, (X, F.one_hot(Y).float()), {}),
    "nll after log_softmax": (
        lambda: nn.Sequential(mlp(), nn.LogSoftmax(1)),
        PAIR,
        {"loss": nn.NLLLoss()},
    ),
    "ignored targets": (mlp, (X, Y.where(X[:, 1] > 0, -100)), {"loss": nn.CrossEntropyLoss()}),
    # kinds of data
    "numpy": (mlp, (X.numpy(), Y.numpy()), {}),
    "lists": (mlp, (X.tolist(), Y.tolist()), {}),
    "pandas, a pair": (mlp, (FRAME[list("abcd")], FRAME["sick"]), {}),
    "pandas, a target column": (mlp, (FEATURES, "sick"), {}),
    "pandas, two target columns": (
        partial(linear, 2),
        (FRAME[["a", "b", "c", "d", "dose", "sick"]], ["dose", "sick"]),
        {"loss": "mse"},
    ),
    "columns by name": (Two, {"train": {"first": X, "second": X[:, :2], "target": Y}}, {}),
    "a list of samples": (mlp, list(zip(X, Y, strict=True)), {}),
    "a list of plain samples": (mlp, [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)], {}),
    "a list of mappings": (
        Two,
        [{"first": X[i], "second": X[i, :2], "label": int(Y[i])} for i in range(N)],
        {},
    ),
    "a map-style Dataset": (mlp, Rows(lambda i: (X[i].numpy(), int(Y[i]))), {}),
    "a Dataset of mappings": (
        Transformer,
        Rows(lambda i: {k: x[i] for k, x in BY_NAME.items()}),
        {},
    ),
    "a Dataset of two inputs": (Two, Rows(lambda i: ((X[i], X[i, :2]), Y[i])), {}),
    "a TensorDataset": (mlp, TensorDataset(X, Y), {}),
    "a Subset": (mlp, Subset(TensorDataset(X, Y), range(0, N, 2)), {}),
    "length and items": (mlp, Plain(), {}),
    "an iterable Dataset": (mlp, Stream(), {}),
    "a generator": (mlp, lambda: ((X[i], Y[i]) for i in range(N)), {}),
    "a DataLoader": (mlp, DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True), {}),
    "a DataLoader of a stream": (mlp, DataLoader(Stream(), batch_size=4), {}),
    "a DataLoader with collate_fn": (Recurrent, DataLoader(RAGGED_ROWS, collate_fn=pad), {}),
    "variable lengths": (Recurrent, RAGGED_ROWS, {"collate_fn": pad}),
    "variable lengths by name": (Recurrent, RAGGED_ROWS, {"collate_fn": pad_by_name}),
    "variable lengths in a list": (
        Recurrent,
        list(zip(RAGGED, Y, strict=True)),
        {"collate_fn": pad},
    ),
    "variable lengths, own loss": (
        Recurrent,
        RAGGED_ROWS,
        {"collate_fn": pad, "loss": lambda o, y: F.cross_entropy(o, y)},
    ),
    "Hugging Face": (Transformer, hugging_face, {}),
    "Hugging Face, logits": (partial(Transformer, out=with_logits), hugging_face, {}),
    "tokens by name": (Transformer, BY_NAME, {}),
    "tokens by name, whole sites": (Transformer, BY_NAME, {"batch_size": None}),
    "parts of different kinds": (
        mlp,
        {"train": PAIR, "val": TensorDataset(X, Y), "test": DataLoader(TensorDataset(X, Y))},
        {},
    ),
    "bf16": (cnn, PICTURES, {"precision": "bf16"}),
}
REFUSED = {
    "a sum": (mlp, PAIR, {"loss": nn.CrossEntropyLoss(reduction="sum")}, "expected a mean"),
    "a sum over padded": (
        Recurrent,
        RAGGED_ROWS,
        {"collate_fn": pad, "loss": lambda o, y: F.cross_entropy(o, y, reduction="sum")},
        "expected a mean",
    ),
    "none": (mlp, (X, X[:, :2]), {"loss": nn.MSELoss(reduction="none")}, "reduction='mean'"),
    "one output of classes": (partial(mlp, 1), PAIR, {}, "loss='bce'"),
    "yes and no as -1 and 1": (
        partial(mlp, 1),
        (X, 2 * Y - 1),
        {"loss": "bce"},
        "expected 0 to 1 for a binary loss",
    ),
    "bce with two outputs": (mlp, PAIR, {"loss": "bce"}, "expected the same shape"),
    "BCELoss on logits": (partial(mlp, 1), (X, Y), {"loss": nn.BCELoss()}, "use loss='bce'"),
    "an LSTM's whole output": (
        partial(Recurrent, lambda output, hidden, head: (output, hidden)),
        TEXT,
        {},
        "model gives a tuple: expected a tensor",
    ),
    "a mapping without logits": (
        partial(Giving, lambda x: {"out": x}),
        PAIR,
        {"loss": nn.CrossEntropyLoss()},
        "gives a dict: expected a tensor, or an output with logits",
    ),
    "variable lengths alone": (Recurrent, RAGGED_ROWS, {}, "a collate_fn that pads"),
    "variable lengths in a DataLoader": (Recurrent, DataLoader(RAGGED_ROWS), {}, "collate_fn"),
    "a list of ragged inputs": (Recurrent, (RAGGED, Y), {}, "collate_fn"),
    "a collate_fn of three": (mlp, Plain(), {"collate_fn": lambda items: (1, 2, 3)}, "a pair"),
    "a collate_fn that raises": (mlp, Plain(), {"collate_fn": lambda items: 1 / 0}, "collate_fn"),
    "collate_fn=True": (mlp, PAIR, {"collate_fn": True}, "collate_fn=True: expected a function"),
    "text": (Transformer, partial(hugging_face, text=True), {}, "text as 'text'.*tokenizer"),
    "no target by name": (
        Transformer,
        Rows(lambda i: {"input_ids": TOKENS[i], "n": 1}),
        {},
        "expected one of 'labels'",
    ),
    "items of three": (mlp, TensorDataset(X, X, Y), {}, r"\(\(first, second\), target\)"),
    "two inputs for one": (mlp, ((X, X), Y), {}, r"model\(\*inputs\): expected 2 in forward"),
    "inputs of unknown names": (Transformer, ({"ids": TOKENS}, Y), {}, "forward.. to take ids"),
    "a frame alone": (mlp, FRAME, {}, r"\(frame, 'column'\)"),
    "a frame of text": (mlp, (NAMED, "sick"), {}, "in column 'city'"),
    "a target that is no column": (mlp, (FEATURES, "sik"), {}, "did you mean 'sick'"),
    "no numbers in a frame": (
        mlp,
        (FEATURES.assign(a=math.nan), "sick"),
        {},
        r"NaN .*\(column 'a'",
    ),
    "real classes": (mlp, (X, Y.float()), {}, r"use targets\.long"),
    "a class too many": (mlp, (X, 2 * Y), {}, "targets run from 0 to 2: expected 0 to 1"),
    "tokens beyond the table": (Recurrent, (TOKENS + 5, Y), {}, "an embedding needs as many rows"),
    "real tokens": (Recurrent, (TOKENS + 0.5, Y), {}, "an embedding takes whole numbers"),
    "images of another size": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
        PICTURES,
        {},
        "numbers that reach it",
    ),
    "batch norm with one sample": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        (X[:1], Y[:1]),
        {},
        "use a larger batch_size",
    ),
    "batch norm, consensus form": (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)),
        PAIR,
        {"form": "consensus"},
        "GroupNorm",
    ),
    "an endless stream": (mlp, lambda: iter(lambda: (X[0], Y[0]), None), {}, "1,000,000 items"),
    "unlike batch sizes": (
        mlp,
        [DataLoader(Plain(), batch_size=4), DataLoader(Plain(), batch_size=6)],
        {"batch_size": "auto"},
        "batch sizes of 4, 6",
    ),
}


def sites_of(data):
    """Two of them; functions make their data anew for each."""
    if isinstance(data, list) and isinstance(data[0], DataLoader):
        return dict(zip("ab", data, strict=True))
    make = data if callable(data) else lambda: data
    return {"a": make(), "b": make()}


@pytest.mark.parametrize(("model", "data", "given"), TRAINED.values(), ids=TRAINED.keys())
def test_it_trains(model, data, given):
    model = seeded(model)
    before = model.state_dict()
    run = train(model, sites_of(data), **QUICK | given)
    assert np.isfinite(run.losses).all()
    moved = [p for p in run.model.named_parameters() if p[1].requires_grad]
    lazy = any(isinstance(x, nn.UninitializedParameter) for x in before.values())
    assert lazy or any(not torch.equal(p, before[name]) for name, p in moved)


@pytest.mark.parametrize(("model", "data", "given", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_with_a_sentence(model, data, given, said, monkeypatch):
    monkeypatch.setattr("aspire.problem.sources.STREAM", 1000)
    said = said.replace("1,000,000", "1,000")
    with pytest.raises(ValueError, match=said) as caught:
        train(seeded(model), sites_of(data), **QUICK | given)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    assert re.search(r": expected|; |: use |line \d+", text)


def test_there_are_enough_of_them():
    assert len(TRAINED) + len(REFUSED) >= 60


def test_what_was_brought_is_what_is_trained_on():
    """The same rows by another way train to the same model."""
    ways = ("mlp", "numpy", "lists", "pandas, a pair", "pandas, a target column")
    ways += ("a list of samples", "an iterable Dataset", "a generator", "a DataLoader of a stream")
    found = {}
    for name in ways:
        run = train(seeded(mlp), sites_of(TRAINED[name][1]), **QUICK)
        found[name] = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    for name, w in found.items():
        assert torch.equal(w, found["mlp"]), name


def test_a_loader_gives_its_batch_size():
    loaded = {name: DataLoader(TensorDataset(X, Y), batch_size=5) for name in "ab"}
    given = {"iterations": 2, "form": "direct", "evaluate_every": 0}
    run = train(seeded(mlp), loaded, **given)
    assert run.settings["batch_size"] == 5
    assert train(seeded(mlp), loaded, batch_size=7, **given).settings["batch_size"] == 7
    assert train(seeded(mlp), [PAIR], **given).settings["batch_size"] == 64


def test_accuracies_of_yes_and_no():
    """One logit and many labels: by hand from the model that came back."""
    for outputs, data in ((1, (X, Y)), (3, MULTI)):
        run = train(seeded(partial(mlp, outputs)), [data], loss="bce", **QUICK)
        with torch.no_grad():
            yes = run.model(X) > 0
        right = (yes == data[1].view(N, -1).bool()).float().mean()
        assert run.accuracies[0] == pytest.approx(float(right))


def test_lazy_layers_are_drawn_by_the_seed():
    runs = [train(seeded(lazy), [PAIR], seed=seed, **QUICK) for seed in (0, 0, 1)]
    first, again, other = (run.model[0].weight for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    model = lazy()
    train(model, [PAIR], **QUICK)
    assert isinstance(model[0].weight, nn.UninitializedParameter)  # ours was a copy


class Noisy(Dataset):
    """Adds noise to what it reads, in whatever process that is."""

    def __len__(self):
        return 2 * N

    def __getitem__(self, i):
        return X[i % N] + 0.1 * torch.randn(4), Y[i % N]


def test_worker_processes_read_and_change_no_number(monkeypatch):
    """Also where a process has to read on from the middle, as after a resume."""
    monkeypatch.setattr("aspire.problem.sources.FEW", 16)
    given = {"iterations": 3, "form": "direct", "evaluate_every": 0}
    found = []
    for workers in (1, 2):
        run = train(seeded(mlp), [DataLoader(Noisy(), 8, num_workers=workers)], **given)
        found.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    assert torch.equal(*found)
    site = build(seeded(mlp), [DataLoader(Noisy(), 8, num_workers=1)]).sites[0]
    ahead = [site.gradient(site.objective.flat.start, n) for n in (0, 1, 1, 7, 1)]
    assert torch.equal(ahead[1], ahead[2])
    assert torch.equal(ahead[1], ahead[4])
    assert not torch.equal(ahead[1], ahead[3])


def test_what_a_worker_process_raises_is_one_sentence():
    def item(i):
        if torch.utils.data.get_worker_info() is not None:
            raise LookupError("no such row")
        return X[i], Y[i]

    with pytest.raises(ValueError, match=r"site 0: __getitem__ .*LookupError.*line \d+") as caught:
        train(seeded(mlp), [DataLoader(Rows(item), num_workers=1)], **QUICK)
    assert "\n" not in str(caught.value)
