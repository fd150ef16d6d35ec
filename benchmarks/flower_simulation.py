"""The same OFMS-FT rounds on Flower's simulation engine and on ours, in one run.

    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 python benchmarks/flower_simulation.py

Fifty clients with Air's networks (20 of 5 × 100 units, window 51, memory for 5). On Flower: one ClientApp per client on
its Ray engine, one CPU each, and a server app that exchanges one message per client and round; client state and held
models are stored in the node's context, as Flower intends. The policy code is the same, and the results are checked to
be equal. Only rounds that fine-tune count. Needs the extra `bench`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from ofms.compute.evaluation import EvaluationBuilder
from ofms.compute.local import LocalNetworks
from ofms.core.draws import Draws
from ofms.core.messages import Grants, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.drawing.tables import format_table
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import tuning_window_of
from ofms.policies.ofms_ft import build
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.protocol import Policy
from ofms.policies.session import open_sessions
from ofms.simulator.exchange import policy_losses
from ofms.simulator.loopback_client import LoopbackClient
from ofms.simulator.simulation import make_simulation

CLIENTS, MODELS, WINDOW, BUDGET, SEED = 50, 20, 51, 5, 0
QUICK_ROUNDS, PLAIN_ROUNDS = 6, 3
ROUNDS = WINDOW + QUICK_ROUNDS + PLAIN_ROUNDS
POLL_SECONDS = 0.01

Arrays = dict[str, np.ndarray]


class Problem:
    """The problem, built identically in every process."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        modules = {f"net{index}": mlp(14, [100] * 5, 1) for index in range(MODELS)}
        x = np.random.default_rng(0).random((CLIENTS, ROUNDS, 14), dtype=np.float32)
        self.dictionary = Dictionary.from_modules(modules, task="regression")
        self.stream = Stream(x, x.mean(axis=2), "regression")
        catalogue = self.dictionary.catalogue()
        budgets = np.full(CLIENTS, BUDGET * int(catalogue.storage.max()))
        self.fleet = Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(ROUNDS))
        settings = OFMSFT(
            learning_rate=0.7, fine_tuning_rate=1e-4, importance_cap=20, loss_bound="raw", window=WINDOW, warm_up=WINDOW
        )
        self.policy: Policy = build(settings, self.fleet)


_problem: list[Problem] = []


def problem() -> Problem:
    """This process's copy: each Ray worker builds it once."""
    if not _problem:
        torch.set_num_threads(1)
        _problem.append(Problem())
    return _problem[0]


def to_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def by_key(tensors: dict[int, dict[str, torch.Tensor]]) -> Arrays:
    return {f"{model}:{name}": tensor.numpy() for model, each in tensors.items() for name, tensor in each.items()}


def by_model(arrays: Arrays) -> dict[int, dict[str, torch.Tensor]]:
    tensors: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in arrays.items():
        model, name = key.split(":", 1)
        tensors.setdefault(int(model), {})[name] = torch.from_numpy(value.copy())
    return tensors


def open_client(context: Context) -> LoopbackClient:
    """The client of this node: new, or restored from the context."""
    here = problem()
    index = int(context.node_config["partition-id"])
    session, _ = open_sessions(here.policy, here.fleet)
    models = here.dictionary.models
    client = LoopbackClient(
        session=session,
        networks=LocalNetworks([model.module for model in models], [model.trainable for model in models], "regression"),
        x=torch.from_numpy(here.stream.x[index]),
        y=torch.from_numpy(here.stream.y[index]),
        state=session.join(here.fleet.catalogue, here.fleet.budgets[index : index + 1], np.array([index])),
    )
    if "state" in context.state.array_records:
        values = json.loads(str(context.state.config_records["values"]["values"]))
        client.unflatten(from_record(context.state.array_records["state"]), values, "")
    return client


def close_client(client: LoopbackClient, context: Context) -> None:
    arrays, values = client.flatten("")
    context.state["state"] = to_record(arrays)
    context.state["values"] = ConfigRecord({"values": json.dumps(values)})


client_app = ClientApp()


@client_app.query("request")
def first_request(message: Message, context: Context) -> Message:
    client = open_client(context)
    requests = client.request(Draws(SEED, 0))
    close_client(client, context)
    return Message(RecordDict({"request": to_record(requests.to_arrays())}), reply_to=message)


@client_app.train("round")
def play_round(message: Message, context: Context) -> Message:
    here, client = problem(), open_client(context)
    grants = Grants.from_arrays(from_record(message.content.array_records["grants"]))
    plan = client.receive(grants, by_model(from_record(message.content.array_records["models"])))
    index = int(context.node_config["partition-id"])
    span = here.fleet.schedule.span(grants.exchange)
    results = EvaluationBuilder(
        here.stream.y[index : index + 1, span[0] : span[1]], plan.prediction_weights, "regression"
    )
    found = client.evaluate(grants.exchange, np.flatnonzero(plan.held[0]).tolist())
    for model, outputs, losses in found:
        results.add_one(0, model, outputs, losses)
    learnt = policy_losses(results.losses, plan.held, here.policy.loss_bound)
    reports = client.learn(grants.exchange, plan, learnt, found)
    window = tuning_window_of(here.policy.local, here.fleet.schedule, grants.exchange)
    updates = {}
    if window is not None and here.policy.local is not None:
        weights = {model: float(plan.update_weight[0, model]) for model in np.flatnonzero(reports.updated[0]).tolist()}
        updates = client.fine_tune(weights, window, here.policy.local, plan.prediction_weights[0])
    score = results.client_scores()[0]
    requests = client.request(Draws(SEED, grants.exchange + 1))
    close_client(client, context)
    content = RecordDict(
        {
            "report": to_record(reports.to_arrays()),
            "updates": to_record(by_key(updates)),
            "request": to_record(requests.to_arrays()),
            "score": to_record({"score": score, "prediction_weights": plan.prediction_weights}),
        }
    )
    return Message(content, reply_to=message)


class FlowerRun:
    """The results of the server app."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.start_up = 0.0
        self.seconds: list[float] = []
        self.scores: list[np.ndarray] = []
        self.prediction_weights: list[np.ndarray] = []

    def main(self, grid: Grid, context: Context) -> None:
        here = problem()
        while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
            time.sleep(POLL_SECONDS)
        tensors = [{name: tensor.clone() for name, tensor in model.tensors.items()} for model in here.dictionary.models]
        _, session = open_sessions(here.policy, here.fleet)
        server = session.open()
        query = [Message(RecordDict({"go": ConfigRecord()}), node, "query.request") for node in nodes]
        replies = in_client_order(exchange_quickly(grid, query), "request")
        self.start_up = time.perf_counter() - self.started
        for exchange in range(ROUNDS - 1):
            began = time.perf_counter()
            requests = Requests.stack(
                [Requests.from_arrays(from_record(reply.content.array_records["request"])) for reply in replies]
            )
            server, grants = session.grant(server, requests, Draws(SEED, exchange))
            messages = []
            for row, reply in enumerate(replies):
                own = grants.rows(slice(row, row + 1))
                sent = {int(model): tensors[model] for model in np.flatnonzero(own.sent[0])}
                content = RecordDict({"grants": to_record(own.to_arrays()), "models": to_record(by_key(sent))})
                messages.append(Message(content, reply.metadata.src_node_id, "train.round"))
            send = exchange_quickly if exchange < WINDOW + QUICK_ROUNDS else exchange_plainly
            replies = in_client_order(send(grid, messages), "report")
            reports = Reports.stack(
                [Reports.from_arrays(from_record(reply.content.array_records["report"])) for reply in replies]
            )
            server, step = session.absorb(server, reports)
            totals: dict[int, dict[str, torch.Tensor]] = {}
            for reply in replies:
                for model, update in by_model(from_record(reply.content.array_records["updates"])).items():
                    total = totals.setdefault(model, {name: torch.zeros_like(part) for name, part in update.items()})
                    for name, part in update.items():
                        total[name] += part
            for model, total in totals.items():
                for name, part in total.items():
                    tensors[model][name] += float(step[model]) * part
            self.seconds.append(time.perf_counter() - began)
            results = [from_record(reply.content.array_records["score"]) for reply in replies]
            self.scores.append(np.concatenate([each["score"] for each in results]))
            self.prediction_weights.append(np.concatenate([each["prediction_weights"] for each in results]))


def in_client_order(replies: list[Message], record: str) -> list[Message]:
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a client failed: {reply.error}")
    return sorted(replies, key=lambda reply: int(reply.content.array_records[record]["client"].numpy()[0]))


def exchange_plainly(grid: Grid, messages: list[Message]) -> list[Message]:
    """As in Flower's own strategies: poll for replies every three seconds."""
    return list(grid.send_and_receive(messages))


def exchange_quickly(grid: Grid, messages: list[Message]) -> list[Message]:
    """The same, but poll for replies every ten milliseconds."""
    waiting = set(grid.push_messages(messages))
    replies: list[Message] = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            replies.append(reply)
        if waiting:
            time.sleep(POLL_SECONDS)
    return replies


def run_flower() -> FlowerRun:
    run = FlowerRun()
    server_app = ServerApp()
    server_app.main()(run.main)
    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
    return run


def run_ours() -> tuple[float, list[float], list[np.ndarray], list[np.ndarray]]:
    """Start-up, seconds of each round, scores and prediction weights."""
    began = time.perf_counter()
    here = problem()
    simulation = make_simulation(here.policy, here.fleet, here.dictionary, here.stream, seed=SEED, hindsight=False)
    exchanges = simulation.exchanges()
    start_up = time.perf_counter() - began
    seconds, scores, weights = [], [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        exchange = next(exchanges)
        seconds.append(time.perf_counter() - began)
        scores.append(exchange.scores)
        weights.append(exchange.plan.prediction_weights)
    return start_up, seconds, scores, weights


def profile_client() -> list[tuple[str, float]]:
    """Milliseconds of each part of one client's round, run in this process."""
    here = problem()
    context = Context(0, 0, {"partition-id": 0, "num-partitions": CLIENTS}, RecordDict(), {})
    message = Message(RecordDict({"go": ConfigRecord()}), 0, "query.request")
    first_request(message, context)
    client = open_client(context)
    five = {k: here.dictionary.models[k].tensors for k in range(BUDGET)}
    client.store = five
    weights, everything = dict.fromkeys(five, 1.0), np.ones(len(here.dictionary))
    window = tuning_window_of(here.policy.local, here.fleet.schedule, WINDOW)
    local = here.policy.local
    assert window is not None
    assert local is not None

    def context_round_trip() -> None:
        close_client(open_client(context), context)

    parts: list[tuple[str, Callable[[], object]]] = [
        ("predict with five models", lambda: client.evaluate(WINDOW, list(five))),
        ("fine-tune five models", lambda: client.fine_tune(weights, window, local, everything)),
        ("read and write the context", context_round_trip),
        (
            "decode and encode five models",
            lambda: to_record(by_key(by_model(from_record(to_record(by_key(five)))))),
        ),
    ]
    timed = []
    for name, part in parts:
        part()
        began = time.perf_counter()
        for _ in range(20):
            part()
        timed.append((name, 1e3 * (time.perf_counter() - began) / 20))
    return timed


def main() -> int:
    start_up, ours, our_scores, our_weights = run_ours()
    flower = run_flower()
    for exchange, (score, prediction_weights) in enumerate(zip(flower.scores, flower.prediction_weights, strict=True)):
        assert (prediction_weights == our_weights[exchange]).all(), f"choices differ in exchange {exchange}"
        np.testing.assert_allclose(score, our_scores[exchange], rtol=1e-3, atol=1e-7)
    tuned = slice(WINDOW, WINDOW + QUICK_ROUNDS)
    mine = float(np.median(ours[tuned]))
    quick = float(np.median(flower.seconds[tuned]))
    plain = float(np.median(flower.seconds[WINDOW + QUICK_ROUNDS :]))
    rows = [
        ["ofms", f"{1e3 * mine:.1f} ms", "1×", f"{start_up:.1f} s"],
        ["Flower, send_and_receive", f"{1e3 * plain:.0f} ms", f"{plain / mine:.0f}×", f"{flower.start_up:.1f} s"],
        [
            "Flower, replies polled every 10 ms",
            f"{1e3 * quick:.0f} ms",
            f"{quick / mine:.0f}×",
            f"{flower.start_up:.1f} s",
        ],
    ]
    print(f"\n{CLIENTS} clients, rounds that fine-tune; same choices in all {ROUNDS - 1} rounds")
    print(format_table(["", "round", "relative to ofms", "start-up"], rows))
    whole = sum(flower.seconds) + flower.start_up
    both = f"ofms {sum(ours) + start_up:.1f} s, Flower {whole:.1f} s (most rounds polled quickly)"
    print(f"all {ROUNDS - 1} rounds with start-up: {both}")
    print("\nof which, in one client's process:")
    print(format_table(["", "per client and round"], [[name, f"{took:.1f} ms"] for name, took in profile_client()]))
    return 0 if plain / mine >= 50 else 1


if __name__ == "__main__":
    # Ray's workers import the module by name, and each builds its own problem.
    import flower_simulation

    sys.exit(flower_simulation.main())
