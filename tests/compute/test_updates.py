"""Updates of all clients at once against each client's own training and against automatic differentiation."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from ofms.compute.checks import is_finite
from ofms.compute.group import ALONE
from ofms.compute.local import LocalNetworks
from ofms.compute.protocol import Tensors
from ofms.compute.threads import ThreadedCompute
from ofms.core.schedule import Window
from ofms.core.typing import Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate
from tests.problems import PROBLEMS, image_problem, regression_problem, updates_of

WINDOW = Window(2, np.array([0.5, 1.0, 0.5]))
LOCAL: dict[str, LocalUpdate] = {
    "gradient step": GradientStep(0.1, window=3, warm_up=0),
    "epochs": Epochs(0.1, epochs=2, batch_size=2, window=3, warm_up=0),
    "adapted": Adapted(0.1, adaptation_rate=0.1, epochs=1, batch_size=2, window=3, warm_up=0),
}


def update_weights(dictionary: Dictionary, stream: Stream) -> Floats:
    """Weights of which a third are 0: those clients do not upload the model."""
    clients, models = np.ogrid[: stream.clients, : len(dictionary)]
    return ((clients + models) % 3).astype(np.float64)


def networks_of(dictionary: Dictionary, stream: Stream) -> LocalNetworks:
    """The networks of one client, in float64."""
    modules = [model.module.to(torch.float64) for model in dictionary.models]
    return LocalNetworks(modules, [model.trainable for model in dictionary.models], stream.task)


def samples_of(stream: Stream, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The client's samples of the window, in float64."""
    span = slice(WINDOW.first, WINDOW.stop)
    x, y = torch.from_numpy(stream.x[client, span]).double(), torch.from_numpy(stream.y[client, span])
    return x, y if stream.task == "classification" else y.double()


def offsets_of(dictionary: Dictionary, stream: Stream) -> Floats:
    """[N, C] offsets that differ by client and class."""
    x, _ = samples_of(stream, 0)
    width = dictionary.models[0].module.double()(x).shape[1]
    return np.sin(np.arange(stream.clients * width) + 1.0).reshape(stream.clients, width)


def own_updates(
    dictionary: Dictionary, stream: Stream, weights: Floats, local: LocalUpdate, offset: Floats | None = None
) -> dict[int, Tensors]:
    """Sums of updates that each client computes by itself, in float64."""
    networks = networks_of(dictionary, stream)
    sums: dict[int, Tensors] = {}
    for client, model in zip(*np.nonzero(weights), strict=True):
        tensors = {name: tensor.double() for name, tensor in dictionary.models[model].tensors.items()}
        x, y = samples_of(stream, int(client))
        weight = float(weights[client, model])
        own = None if offset is None else offset[client]
        update = networks.update(int(model), tensors, x, y, WINDOW.weights, weight, local, None, own)
        total = sums.setdefault(int(model), {name: torch.zeros_like(tensor) for name, tensor in update.items()})
        sums[int(model)] = {name: total[name] + tensor for name, tensor in update.items()}
    return sums


@pytest.mark.parametrize(("kind", "shifted"), [*((kind, False) for kind in LOCAL), ("gradient step", True)])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_updates_are_the_sums_of_the_clients_own(problem: str, kind: str, shifted: bool) -> None:
    dictionary, stream = PROBLEMS[problem]()
    weights = update_weights(dictionary, stream)
    offset = offsets_of(dictionary, stream) if shifted else None
    with ThreadedCompute(dictionary, stream, dtype=torch.float64) as compute:
        found = updates_of(compute, WINDOW, weights, LOCAL[kind], weights, offset)
    expected = own_updates(dictionary, stream, weights, LOCAL[kind], offset)
    assert found.keys() == expected.keys()
    for model, tensors in expected.items():
        assert set(found[model]) == set(dictionary.models[model].trainable) == set(tensors)
        assert max(float(tensor.abs().max()) for tensor in tensors.values()) > 1e-3, "there is something to compare"
        for name, tensor in tensors.items():
            assert found[model][name].numpy() == pytest.approx(tensor.numpy(), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_gradient_step_is_the_weighted_sum_of_the_clients_gradients(
    problem: str, dtype: torch.dtype, epsilon: float, shifted: bool
) -> None:
    """‖a - b‖∞ ≤ ε · Σ_i w_i ‖g_i‖∞ for every parameter, with the gradients of automatic differentiation.

    The losses are those of outputs with the clients' offsets, if they have some.
    """
    dictionary, stream = PROBLEMS[problem]()
    weights = update_weights(dictionary, stream)
    first_sample, step = Window(0, np.ones(1)), GradientStep(1.0, window=1, warm_up=0)
    with ThreadedCompute(dictionary, stream, dtype=dtype) as compute:
        offset = offsets_of(dictionary, stream) if shifted else None
        found = updates_of(compute, first_sample, weights, step, weights, offset)
        alone = combined_of(compute, first_sample, weights, step, offset)
    for index, model in enumerate(dictionary.models):
        module = model.module.to(dtype)
        tensors = {name: tensor.to(dtype) for name, tensor in model.tensors.items()}
        leaves = {name: tensors[name].clone().requires_grad_() for name in model.trainable}
        sums = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        sizes = dict.fromkeys(leaves, 0.0)
        for client, weight in enumerate(weights[:, index].tolist()):
            output = torch.func.functional_call(
                module, tensors | leaves, (torch.from_numpy(stream.x[client, :1]).to(dtype),)
            )
            target = torch.from_numpy(stream.y[client, :1])
            if offset is not None:
                output = output + torch.from_numpy(offset[client]).to(dtype)
            if stream.task == "classification":
                loss = nn.functional.cross_entropy(output, target)
            else:
                loss = (output[0, 0] - target[0].to(dtype)) ** 2
            for name, slope in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                sums[name] += weight * slope
                sizes[name] += weight * float(slope.abs().max())
        for name, total in sums.items():
            for updates in (found, alone):
                difference = float((updates[index][name] + total).abs().max())
                assert difference <= epsilon * sizes[name] + torch.finfo(dtype).eps


def combined_of(
    compute: ThreadedCompute, window: Window, weights: Floats, local: LocalUpdate, offset: Floats | None
) -> dict[int, Tensors]:
    """The same updates, formed client by client, as for robust aggregation, and then summed."""
    combination = compute.combine([(window, weights)], local, weights, lambda *given: given[2].sum(axis=0), offset)
    return combination.result().updates


def pool_loss(
    dictionary: Dictionary,
    stream: Stream,
    client: int,
    weights: Floats,
    parameters: list[Tensors],
    offset: Floats | None,
) -> torch.Tensor:
    """One client's loss of the pool of its models on the window, as a function of all parameters."""
    span = slice(WINDOW.first, WINDOW.stop)
    x, target = torch.from_numpy(stream.x[client, span]).double(), torch.from_numpy(stream.y[client, span])
    pool = torch.zeros((), dtype=torch.float64)
    for model, share, tensors in zip(dictionary.models, weights[client].tolist(), parameters, strict=True):
        outputs = torch.func.functional_call(model.module.double(), tensors, (x,))
        pool = pool + share * (outputs if stream.task == "regression" else outputs.log_softmax(dim=1))
    if offset is not None:
        pool = pool + torch.from_numpy(offset[client])
    if stream.task == "regression":
        losses = (pool[:, 0] - target.double()) ** 2
    else:
        losses = nn.functional.cross_entropy(pool, target, reduction="none")
    return (torch.from_numpy(WINDOW.weights) * losses).sum()


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_updates_for_the_pool_are_gradients_of_its_loss(problem: str, shifted: bool) -> None:
    """An update counts with its own weight: with that of the vote, it is the gradient of the clients' pools.

    Class probabilities are smoothed in the product, so that gradients agree to about 1e-3 there.
    """
    dictionary, stream = PROBLEMS[problem]()
    clients, models = np.ogrid[: stream.clients, : len(dictionary)]
    votes = ((clients + models) % 3).astype(np.float64) + 0.1
    votes = np.where((clients + models) % 4, votes, 0.0)
    votes = votes / votes.sum(axis=1, keepdims=True)
    uploads = (np.arange(stream.clients) % 2 == 0)[:, None]
    update_weight = np.where(uploads, votes, 0.0)
    step = GradientStep(1.0, window=3, warm_up=0, objective="pool")
    with ThreadedCompute(dictionary, stream, dtype=torch.float64) as compute:
        offset = offsets_of(dictionary, stream) if shifted else None
        found = updates_of(compute, WINDOW, update_weight, step, votes, offset)
    leaves = [{name: tensor.double() for name, tensor in model.tensors.items()} for model in dictionary.models]
    for tensors, model in zip(leaves, dictionary.models, strict=True):
        for name in model.trainable:
            tensors[name].requires_grad_()
    uploading = np.flatnonzero(uploads).tolist()
    total = torch.stack([pool_loss(dictionary, stream, client, votes, leaves, offset) for client in uploading]).sum()
    tolerance = 1e-9 if stream.task == "regression" else 2e-3
    own = networks_of(dictionary, stream)
    for index, model in enumerate(dictionary.models):
        parts = torch.autograd.grad(total, [leaves[index][name] for name in model.trainable], retain_graph=True)
        sums = {name: torch.zeros_like(part) for name, part in zip(model.trainable, parts, strict=True)}
        for client in np.flatnonzero(update_weight[:, index]).tolist():
            x, y = samples_of(stream, client)
            held = {k: {name: part.detach() for name, part in each.items()} for k, each in enumerate(leaves)}
            residuals = own.residuals(held, x, y, votes[client], None if offset is None else offset[client])
            weight = float(update_weight[client, index])
            update = own.update(index, held[index], x, y, WINDOW.weights, weight, step, residuals)
            sums = {name: sums[name] + update[name] for name in sums}
        for name, part in zip(model.trainable, parts, strict=True):
            size = float(part.abs().max())
            assert float((found[index][name] + part).abs().max()) <= tolerance * size + 1e-12, (index, name)
            assert found[index][name].numpy() == pytest.approx(sums[name].numpy(), rel=1e-9, abs=1e-12)


def named() -> nn.Module:
    return nn.Sequential(OrderedDict(fc1=nn.Linear(3, 4), act=nn.ReLU(), fc2=nn.Linear(4, 1)))


class Shifted(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self:
            x = module(x)
        return x + 5


def shifted() -> nn.Module:
    return Shifted(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@pytest.mark.parametrize("kind", [*LOCAL, "pool"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_clients_whose_update_is_not_finite_are_left_out(problem: str, kind: str) -> None:
    """The sum is that of the others."""
    dictionary, stream = PROBLEMS[problem]()
    weights, broken = update_weights(dictionary, stream), 1
    x = stream.x.copy()
    x[broken, WINDOW.first + 1] = 3e38
    local = LOCAL.get(kind, GradientStep(0.1, window=3, warm_up=0, objective="pool"))
    votes = weights / weights.sum(axis=1, keepdims=True)
    with ThreadedCompute(dictionary, Stream(x, stream.y, stream.task)) as compute:
        found = compute.update(WINDOW, weights, local, votes).result()
        updates = ALONE.total(found.shards, compute.block, compute.like)
        without = weights.copy()
        for pair in found.left_out:
            without[pair] = 0.0
        expected = compute.update(WINDOW, without, local, votes).result()
        expected_updates = ALONE.total(expected.shards, compute.block, compute.like)
    everything = [(broken, int(model)) for model in np.flatnonzero(weights[broken])]
    assert found.left_out
    assert set(found.left_out) <= set(everything), "in a network of ReLUs, some gradients may be 0"
    assert found.left_out == everything or problem == "images"
    assert expected.left_out == []
    assert all(is_finite(update.values()) for update in updates.values())
    for model, tensors in expected_updates.items():
        for name, tensor in tensors.items():
            assert updates[model][name] == pytest.approx(tensor, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("make", [named, shifted])
def test_networks_that_resemble_plain_ones_are_run_as_they_are(make: Callable[[], nn.Module]) -> None:
    """Fully connected networks are stacked; these have other names of parameters, or a forward pass of their own."""
    _, stream = regression_problem()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dictionary = Dictionary.from_modules({f"net{index}": make() for index in range(4)}, task="regression")
    weights = update_weights(dictionary, stream)
    everything = np.ones(weights.shape, dtype=np.bool_)
    with ThreadedCompute(dictionary, stream, dtype=torch.float64) as compute:
        losses = compute.evaluate((0, 5), everything, everything / 4, hindsight=True).result().losses
        found = updates_of(compute, WINDOW, weights, LOCAL["gradient step"], weights)
    x, y = torch.from_numpy(stream.x[:, :5]).double(), torch.from_numpy(stream.y[:, :5]).double()
    with torch.no_grad():
        expected = [(model.module.double()(x)[..., 0] - y) ** 2 for model in dictionary.models]
    assert losses == pytest.approx(torch.stack(expected, dim=-1).numpy(), rel=1e-9)
    for model, tensors in own_updates(dictionary, stream, weights, LOCAL["gradient step"]).items():
        for name, tensor in tensors.items():
            assert found[model][name].numpy() == pytest.approx(tensor.numpy(), rel=1e-9, abs=1e-11)


def test_statistics_of_batch_norm_do_not_change() -> None:
    dictionary, stream = image_problem()
    weights = update_weights(dictionary, stream)
    with ThreadedCompute(dictionary, stream) as compute:
        for local in LOCAL.values():
            compute.apply(updates_of(compute, WINDOW, weights, local, weights), np.ones(len(dictionary)))
        states = [compute.state(model) for model in range(len(dictionary))]
    for model, state in zip(dictionary.models, states, strict=True):
        kept = {name for name in state if torch.equal(state[name], model.tensors[name])}
        statistics = {name for name in state if "running" in name}
        assert statistics
        assert kept >= statistics
        assert not kept & set(model.trainable), "all other tensors are fine-tuned"


def plain_training(module: nn.Module, x: torch.Tensor, y: torch.Tensor, local: Epochs | Adapted, task: str) -> Tensors:
    """Change of the parameters by local training, with PyTorch only, nothing of this package."""
    loss_of = nn.CrossEntropyLoss() if task == "classification" else nn.MSELoss()

    def loss(network: nn.Module, some: slice) -> torch.Tensor:
        outputs = network(x[some])
        value: torch.Tensor = loss_of(outputs if task == "classification" else outputs[:, 0], y[some])
        return value

    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimiser = torch.optim.SGD(module.parameters(), lr=local.rate)
    for _ in range(local.epochs):
        for first in range(0, len(x), local.batch_size):
            stop = min(first + local.batch_size, len(x))
            optimiser.zero_grad()
            if isinstance(local, Adapted):
                middle = first + (stop - first) // 2
                fast = copy.deepcopy(module)
                if middle > first:
                    step = torch.optim.SGD(fast.parameters(), lr=local.adaptation_rate)
                    step.zero_grad()
                    loss(fast, slice(first, middle)).backward()
                    step.step()
                fast.zero_grad()
                loss(fast, slice(middle, stop)).backward()
                for slow, adapted in zip(module.parameters(), fast.parameters(), strict=True):
                    slow.grad = adapted.grad
            else:
                loss(module, slice(first, stop)).backward()
            optimiser.step()
    return {name: parameter.detach() - before[name] for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(
    "local",
    [
        Epochs(0.05, epochs=3, batch_size=2, window=7, warm_up=0),
        Epochs(0.05, epochs=2, batch_size=7, window=7, warm_up=0),
        Adapted(0.05, adaptation_rate=0.3, epochs=3, batch_size=3, window=7, warm_up=0),
        Adapted(0.05, adaptation_rate=0.3, epochs=1, batch_size=7, window=7, warm_up=0),
    ],
    ids=["epochs", "one batch", "adapted", "adapted once"],
)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_local_training_is_that_of_a_plain_loop(problem: str, local: Epochs | Adapted) -> None:
    """Seven samples in batches, the last of which may be smaller; by each client alone and by all together."""
    dictionary, stream = PROBLEMS[problem]()
    window = Window(2, np.full(7, 1 / 7))
    weights = np.zeros((stream.clients, len(dictionary)))
    weights[1, 0], weights[3, 0] = 0.5, 2.0
    expected: Tensors = {}
    for client in (1, 3):
        module = copy.deepcopy(dictionary.models[0].module).double()
        module.load_state_dict(dictionary.models[0].tensors)
        module.eval()
        x = torch.from_numpy(stream.x[client, 2:9]).double()
        y = torch.from_numpy(stream.y[client, 2:9])
        y = y if stream.task == "classification" else y.double()
        change = plain_training(module, x, y, local, stream.task)
        tensors = {name: tensor.double() for name, tensor in dictionary.models[0].tensors.items()}
        alone = networks_of(dictionary, stream).update(0, tensors, x, y, window.weights, weights[client, 0], local)
        assert alone.keys() == change.keys()
        for name, tensor in change.items():
            assert alone[name].numpy() == pytest.approx(weights[client, 0] * tensor.numpy(), rel=1e-9, abs=1e-12)
            expected[name] = expected.get(name, 0.0) + weights[client, 0] * tensor
    with ThreadedCompute(dictionary, stream, dtype=torch.float64) as compute:
        found = updates_of(compute, window, weights, local, weights)
    assert list(found) == [0]
    for name, tensor in expected.items():
        assert found[0][name].numpy() == pytest.approx(tensor.numpy(), rel=1e-9, abs=1e-12)
