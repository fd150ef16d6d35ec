"""A device: it predicts at once with what it holds, learns when labels come, and keeps itself on disk.

The store is a folder that one process writes. `snapshot.safetensors` holds everything as it was after the last letter,
`journal-N` the predictions and labels since; together they are the device. A letter from the server (welcome, grant)
goes in by `receive`, one for the server comes out by `collect`; how they travel is not the device's business.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import safetensors.torch
import torch

from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.tasks import sample_losses
from ofms.core.bounding import selection_loss
from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput, NotFinite, NotReady
from ofms.core.files import FolderLock, require_writable, write_whole
from ofms.core.messages import Catalogue, Grants, Plan, Reports
from ofms.core.schedule import Schedule, past_window
from ofms.core.states import put_together, take_apart
from ofms.core.typing import AnyArray, Floats
from ofms.device.journal import Journal, read_records
from ofms.device.letters import Letter, message_arrays, seal, unseal
from ofms.models.zoo import build_module
from ofms.policies.protocol import Adapted, Fleet, Policy, tuning_window_of
from ofms.policies.registry import build_policy, settings_type

_SNAPSHOT, _WELCOME, _MODELS = "snapshot.safetensors", "welcome.safetensors", "models"
_MOST_JOURNAL_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Prediction:
    """What a device answers: a class number or a value, and the id under which its label may come."""

    id: int
    value: float | int


@dataclass(eq=False)
class _Waiting:
    """An input that waits for its label: when it came, in which exchange, and outputs of models that have gone."""

    x: AnyArray
    exchange: int
    since: float
    outputs: dict[int, AnyArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What the welcome said, ready for use."""

    policy: Policy
    fleet: Fleet
    networks: LocalNetworks
    seed: int
    client: int
    task: Any


class Device:
    """One client of a federation, opened on its store.

    Parameters
    ----------
    store
        Its folder; made where it is missing.
    budget
        Memory for models, in bytes.
    most_waiting, longest_wait
        How many inputs may wait for their labels, and for how many seconds; what falls out is counted in `dropped`.
    """

    def __init__(
        self, store: str | Path, *, budget: int, most_waiting: int = 1000, longest_wait: float = 86_400.0
    ) -> None:
        if budget < 1:
            raise InvalidInput("budget", budget, "give the bytes that models may take")
        self.store, self.budget = Path(store), budget
        self.most_waiting, self.longest_wait = most_waiting, longest_wait
        require_writable(self.store / _MODELS)
        self._lock = FolderLock(self.store)
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._setting: _Setting | None = None
        self._state: Any = None
        self._plans: dict[int, Plan] = {}
        self._exchange = -1
        self._open = False
        self._held: dict[int, Tensors] = {}
        self._versions: dict[int, int] = {}
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._samples: deque[tuple[AnyArray, float | int]] = deque()
        self._losses: Floats = np.zeros(0)
        self._labelled = 0
        self._next_id = 0
        self._number = 0
        self._outgoing: bytes | None = None
        self._voting: tuple[int, list[int]] = (-1, [])
        self._journal: Journal
        self.dropped = 0
        self.in_transit = 0
        try:
            self._reopen()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store; everything is in it already."""
        with self._guard:
            self._journal.close()
            self._lock.close()

    @property
    def ready(self) -> bool:
        """Whether there has been a grant: from then on it predicts, with or without a server."""
        return bool(self._plans)

    @property
    def held_bytes(self) -> int:
        """What the models take that it holds."""
        setting = self._setting
        return 0 if setting is None else sum(int(setting.fleet.catalogue.storage[model]) for model in self._held)

    @property
    def exchange(self) -> int:
        """The number of the exchange whose models it holds; -1 before the first."""
        return self._exchange

    @property
    def wants_exchange(self) -> bool:
        """Whether as many labels came as an exchange has samples, so that there is something to report."""
        setting = self._setting
        return setting is not None and self._open and self._labelled >= setting.fleet.schedule.interval

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the first grant; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ready, timeout)

    def predict(self, x: AnyArray) -> Prediction:
        """Answer at once with the models at hand."""
        x = np.atleast_1d(np.asarray(x, dtype=np.float32))
        with self._guard:
            setting = self._require_ready()
            plan = self._plans[self._exchange]
            waiting = _Waiting(x, self._exchange, time.time())
            if self._voting[0] != self._exchange:
                self._voting = (self._exchange, np.flatnonzero(plan.vote[0]).tolist())
            outputs = {model: self._output(setting, model, x) for model in self._voting[1]}
            value = _answer(outputs, plan.vote[0], setting.task)
            number = self._next_id
            self._append({"kind": "predict", "id": number, "shape": x.shape, "since": waiting.since}, x.tobytes())
            self._next_id += 1
            self._wait_for(number, waiting)
            return Prediction(number, value)

    def feedback(self, id: int, y: float | int) -> bool:
        """Learn from a label; False where its input is not waiting (any more)."""
        with self._guard:
            setting = self._require_ready()
            if id not in self._waiting:
                return False
            # Refused before it is written down: what is in the journal must be learnt from when it is read again.
            label = self._label(setting, self._waiting[id], y)
            self._append({"kind": "feedback", "id": int(id), "y": label}, b"")
            self._learn(int(id), label)
            return True

    def receive(self, content: bytes) -> None:
        """Take a letter from the server: the welcome, then a grant for each exchange."""
        letter = unseal(content)
        with self._guard:
            self.in_transit = len(content)
            try:
                if letter.kind == "welcome":
                    self._welcome(letter, content)
                elif letter.kind == "grant":
                    self._grant(letter)
                else:
                    raise InvalidInput("letter", letter.kind, "a device takes a welcome or a grant")
            finally:
                self.in_transit = 0
            self._snapshot()
            self._changed.notify_all()

    def collect(self, *, now: bool = False) -> bytes | None:
        """The letter for the server: the first request, or the report of an exchange with the next request.

        None where there is none yet; `now` ends an exchange before all of its labels came.
        """
        with self._guard:
            if self._setting is not None and self._open and (now or self.wants_exchange):
                self._report(self._setting)
                self._snapshot()
            return self._outgoing

    # What letters do.

    def _welcome(self, letter: Letter, content: bytes) -> None:
        self._setting = self._prepare(letter)
        write_whole(self.store / _WELCOME, content)
        catalogue = self._setting.fleet.catalogue
        self._state = self._setting.policy.client.join(
            catalogue, self._setting.fleet.budgets, np.array([self._setting.client])
        )
        self._plans, self._held, self._versions, self._open = {}, {}, {}, False
        self._voting = (-1, [])
        self._waiting.clear()
        self._samples.clear()
        self._losses, self._labelled, self._exchange = np.zeros(len(catalogue)), 0, -1
        self._request(self._setting, int(letter.values["exchange"]), {}, {})

    def _prepare(self, letter: Letter) -> _Setting:
        values = letter.values
        models = values["models"]
        names = tuple(str(model["name"]) for model in models)
        storage, upload = (np.array([model[key] for model in models], dtype=np.int64) for key in ("storage", "upload"))
        catalogue = Catalogue(names, storage, upload, np.zeros(len(names), dtype=np.int64), str(values["revision"]))
        schedule = Schedule(int(values["rounds"]), int(values["interval"]))
        fleet = Fleet(catalogue, np.array([self.budget], dtype=np.int64), int(values["bandwidth"]), schedule)
        settings = msgspec.convert(values["settings"], settings_type(str(values["policy"])))
        policy = build_policy(str(values["policy"]), settings, fleet)
        # Without memory of their own: a device has none for models that it does not hold.
        modules = [build_module(str(model["architecture"]), model["options"]).eval().to("meta") for model in models]
        trainable = [tuple(model["trainable"]) for model in models]
        networks = LocalNetworks(modules, trainable, values["task"])
        return _Setting(policy, fleet, networks, int(values["seed"]), int(values["client"]), values["task"])

    def _grant(self, letter: Letter) -> None:
        setting = self._setting
        if setting is None:
            raise InvalidInput("letter", "grant", "a welcome must come first")
        if letter.values["revision"] != setting.fleet.catalogue.revision:
            raise InvalidInput("letter", letter.values["revision"], "it is for another dictionary; ask for a welcome")
        exchange = int(letter.values["exchange"])
        if exchange <= self._exchange:
            return  # It came before.
        arrays = {name: np.asarray(array) for name, array in letter.part("grant").items()}
        arrays |= {"exchange": np.asarray(exchange), "groups": np.asarray(int(letter.values["groups"]))}
        grants = Grants.from_arrays(arrays)
        needed = int(grants.held[0] @ setting.fleet.catalogue.storage)
        if needed > self.budget:
            raise InvalidInput("letter", f"{needed} bytes", f"the grant does not fit the budget of {self.budget} bytes")
        held = {int(model) for model in np.flatnonzero(grants.held[0])}
        sent = _by_model(letter.part("model"))
        missing = [model for model in held if model not in sent and model not in self._held]
        if missing:
            raise InvalidInput("letter", f"model {missing[0]}", "it is granted but neither sent nor here")
        self._keep_outputs(setting, {model for model in self._held if model not in held or model in sent})
        self._state, plan = setting.policy.client.plan(self._state, grants)
        for model in held:
            if model in sent:
                self._hold(
                    setting, model, {name: torch.from_numpy(array.copy()) for name, array in sent[model].items()}
                )
                self._versions[model] = int(grants.version[model])
                content = safetensors.torch.save(self._held[model])
                write_whole(self.store / _MODELS / f"{model}-{self._versions[model]}.safetensors", content)
        for model in self._held.keys() - held:
            del self._held[model], self._versions[model]
            setting.networks.networks[model].to("meta")
        self._exchange, self._open, self._outgoing = exchange, True, None
        self._plans[exchange] = plan
        self._losses, self._labelled = np.zeros(len(setting.fleet.catalogue)), 0
        self._forget_plans()

    def _hold(self, setting: _Setting, model: int, tensors: Tensors) -> None:
        """Keep a model's tensors, and let its network use them in place, so that predictions cost what it does."""
        self._held[model] = tensors
        network = setting.networks.networks[model]
        network.load_state_dict(tensors, strict=False, assign=True)
        network.requires_grad_(False)

    def _report(self, setting: _Setting) -> None:
        """End the exchange: learn, fine-tune, and write the report with the next request."""
        plan = self._plans[self._exchange]
        losses = np.where(plan.held, self._losses[None], np.nan)
        self._state, reports = setting.policy.client.learn(self._state, plan, losses)
        self._open = False
        deltas = self._deltas(setting, plan, reports)
        self._request(setting, self._exchange + 1, message_arrays(reports, "report"), deltas)

    def _request(
        self, setting: _Setting, exchange: int, report: dict[str, AnyArray], deltas: dict[int, Tensors]
    ) -> None:
        draws = Draws(setting.seed, exchange)
        self._state, requests = setting.policy.client.request(self._state, draws)
        arrays = message_arrays(requests, "request") | report
        for model, delta in deltas.items():
            arrays |= {f"delta.{model}.{name}": tensor.numpy() for name, tensor in delta.items()}
        values = {
            "client": setting.client,
            "exchange": exchange,
            "revision": setting.fleet.catalogue.revision,
            "held_bytes": self.held_bytes,
            "versions": {str(model): self._versions[model] for model in deltas},
        }
        self._outgoing = seal(Letter("request", values, arrays))

    def _deltas(self, setting: _Setting, plan: Plan, reports: Reports) -> dict[int, Tensors]:
        local = setting.policy.local
        window = tuning_window_of(local, setting.fleet.schedule, self._exchange)
        if local is None or window is None or not self._samples:
            return {}
        count = min(window.weights.size, len(self._samples))
        x, y = self._batch(setting, count)
        weights = window.weights[-count:]
        deltas = {
            int(model): setting.networks.update(
                int(model), self._held[int(model)], x, y, weights, float(plan.pull[0, model]), local
            )
            for model in np.flatnonzero(reports.updated[0])
        }
        for model, delta in deltas.items():
            if not all(bool(torch.isfinite(tensor).all()) for tensor in delta.values()):
                raise NotFinite(f"the update of model {model} in exchange {self._exchange} is not finite")
        return deltas

    # What predictions and labels do.

    def _learn(self, id: int, y: float | int) -> None:
        setting = self._require_ready()
        waiting = self._waiting.pop(id)
        plan = self._plans[waiting.exchange]
        losses = np.full((1, 1, len(setting.fleet.catalogue)), np.nan)
        target = torch.tensor([y], dtype=torch.int64 if setting.task == "classification" else torch.float32)
        for model in np.flatnonzero(plan.held[0]).tolist():
            output = waiting.outputs.get(model)
            if output is None:
                output = self._output(setting, model, waiting.x)
            losses[0, 0, model] = float(sample_losses(torch.from_numpy(output)[None], target, setting.task)[0])
        bounded = np.where(plan.held, selection_loss(losses, setting.policy.loss_bound)[:, 0], np.nan)
        if self._open and waiting.exchange == self._exchange:
            self._losses += np.where(plan.held[0], bounded[0], 0.0)
            self._labelled += 1
        else:
            # Late: what the exchange had known is learnt now, with the probabilities of then.
            self._state, _ = setting.policy.client.learn(self._state, plan, bounded)
        self._samples.append((waiting.x, y))
        longest = setting.fleet.schedule.interval + (setting.policy.local.window if setting.policy.local else 0)
        while len(self._samples) > longest:
            self._samples.popleft()
        self._forget_plans()

    def _label(self, setting: _Setting, waiting: _Waiting, y: float | int) -> float | int:
        if not np.isfinite(y):
            raise InvalidInput("label", y, "give a finite number")
        if setting.task == "regression":
            return float(y)
        held = next(iter(self._held))
        classes = len(next(iter(waiting.outputs.values()), self._output(setting, held, waiting.x)))
        if y != int(y) or not 0 <= y < classes:
            raise InvalidInput("label", y, f"give a class from 0 to {classes - 1}")
        return int(y)

    def _wait_for(self, number: int, waiting: _Waiting) -> None:
        self._waiting[number] = waiting
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if len(self._waiting) <= self.most_waiting and waiting.since - oldest.since <= self.longest_wait:
                break
            self._waiting.popitem(last=False)
            self.dropped += 1

    def _keep_outputs(self, setting: _Setting, models: set[int]) -> None:
        """Before models go or are replaced: their outputs for the inputs that still wait for labels."""
        for waiting in self._waiting.values():
            plan = self._plans[waiting.exchange]
            for model in models:
                if plan.held[0, model] and model not in waiting.outputs:
                    waiting.outputs[model] = self._output(setting, model, waiting.x)

    def _forget_plans(self) -> None:
        needed = {waiting.exchange for waiting in self._waiting.values()} | {self._exchange}
        self._plans = {exchange: plan for exchange, plan in self._plans.items() if exchange in needed}

    def _output(self, setting: _Setting, model: int, x: AnyArray) -> AnyArray:
        local = setting.policy.local
        network: Callable[[torch.Tensor], torch.Tensor] = setting.networks.networks[model]
        if isinstance(local, Adapted):
            # To the samples before this exchange: what came since does not count yet.
            first = setting.fleet.schedule.span(self._exchange)[0]
            past = past_window(first, local.window) if first >= local.warm_up else None
            before = len(self._samples) - (self._labelled if self._open else 0)
            if past is not None and before > 0:
                xs, ys = self._batch(setting, min(past.weights.size, before), before)
                tensors = setting.networks.adapted(model, self._held[model], xs, ys, local.adaptation_rate)
                network = partial(setting.networks.outputs, model, tensors)
        try:
            with torch.inference_mode():
                output: AnyArray = network(torch.from_numpy(x)[None])[0].numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput("input", list(x.shape), f"the models do not take it ({reason})") from None
        return output

    def _batch(self, setting: _Setting, count: int, stop: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The last labelled samples, or the last ones before some place."""
        samples = list(self._samples)[:stop][-count:]
        kind = torch.int64 if setting.task == "classification" else torch.float32
        return torch.from_numpy(np.stack([x for x, _ in samples])), torch.tensor([y for _, y in samples], dtype=kind)

    def _require_ready(self) -> _Setting:
        if self._setting is None or not self.ready:
            raise NotReady(f"{self.store}: no grant has come yet; wait_ready() waits for the first one")
        return self._setting

    # The store.

    def _append(self, values: dict[str, Any], content: bytes) -> None:
        head = msgspec.json.encode(values)
        self._journal.append(len(head).to_bytes(4, "little") + head + content)
        if self._journal.size > _MOST_JOURNAL_BYTES:
            self._snapshot()

    def _snapshot(self) -> None:
        """Write everything, begin a new journal, and remove what nobody needs any more."""
        arrays, state_values = take_apart(self._state, "state.") if self._state is not None else ({}, {})
        for exchange, plan in self._plans.items():
            arrays |= {f"plan.{exchange}.{name}": getattr(plan, name) for name in Plan.__dataclass_fields__}
        waiting = {}
        for number, each in self._waiting.items():
            arrays[f"waiting.{number}"] = each.x
            arrays |= {f"output.{number}.{model}": output for model, output in each.outputs.items()}
            waiting[str(number)] = [each.exchange, each.since]
        for place, (x, _) in enumerate(self._samples):
            arrays[f"sample.{place}"] = x
        if self._outgoing is not None:
            arrays["outgoing"] = np.frombuffer(self._outgoing, dtype=np.uint8)
        arrays["losses"] = self._losses
        self._number += 1
        values = {
            "number": self._number,
            "state": state_values,
            "plans": list(self._plans),
            "waiting": waiting,
            "labels": [y for _, y in self._samples],
            "exchange": self._exchange,
            "open": self._open,
            "labelled": self._labelled,
            "next_id": self._next_id,
            "dropped": self.dropped,
            "versions": {str(model): version for model, version in self._versions.items()},
        }
        write_whole(self.store / _SNAPSHOT, seal(Letter("snapshot", values, arrays)))
        self._journal.close()
        self._journal = Journal(self.store / f"journal-{self._number}")
        for path in self.store.glob("journal-*"):
            if path != self._journal.path:
                path.unlink()
        wanted = {f"{model}-{version}.safetensors" for model, version in self._versions.items()}
        for path in (self.store / _MODELS).glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink()

    def _reopen(self) -> None:
        """Become what the store says."""
        path = self.store / _SNAPSHOT
        if path.exists():
            try:
                self._restore(unseal(path.read_bytes()))
            except (InvalidInput, KeyError, ValueError, OSError) as error:
                raise InvalidInput("store", self.store, f"it is damaged ({error}); remove it to join anew") from None
        self._journal = Journal(self.store / f"journal-{self._number}")
        for record in read_records(self._journal.path):
            self._replay(record)

    def _restore(self, letter: Letter) -> None:
        values = letter.values
        self._number, self._exchange = int(values["number"]), int(values["exchange"])
        self._open, self._labelled = bool(values["open"]), int(values["labelled"])
        self._next_id, self.dropped = int(values["next_id"]), int(values["dropped"])
        self._losses = letter.arrays["losses"].copy()
        if "outgoing" in letter.arrays:
            self._outgoing = letter.arrays["outgoing"].tobytes()
        welcome = self.store / _WELCOME
        if not welcome.exists():
            return
        setting = self._setting = self._prepare(unseal(welcome.read_bytes()))
        template = setting.policy.client.join(
            setting.fleet.catalogue, setting.fleet.budgets, np.array([setting.client])
        )
        self._state = put_together(template, dict(letter.arrays), dict(values["state"]), "state.")
        for exchange in values["plans"]:
            self._plans[int(exchange)] = Plan(**letter.part(f"plan.{exchange}"))
        for model, version in values["versions"].items():
            path = self.store / _MODELS / f"{model}-{version}.safetensors"
            self._hold(setting, int(model), safetensors.torch.load(path.read_bytes()))
            self._versions[int(model)] = int(version)
        for number, (exchange, since) in values["waiting"].items():
            outputs = {int(model): array for model, array in letter.part(f"output.{number}").items()}
            x = letter.arrays[f"waiting.{number}"]
            self._waiting[int(number)] = _Waiting(x, int(exchange), float(since), outputs)
        for place, label in enumerate(values["labels"]):
            self._samples.append((letter.arrays[f"sample.{place}"], label))

    def _replay(self, record: bytes) -> None:
        size = int.from_bytes(record[:4], "little")
        values = msgspec.json.decode(record[4 : 4 + size], type=dict[str, Any])
        if values["kind"] == "predict":
            x = np.frombuffer(record[4 + size :], dtype=np.float32).reshape(values["shape"]).copy()
            self._next_id = int(values["id"]) + 1
            self._wait_for(int(values["id"]), _Waiting(x, self._exchange, float(values["since"])))
        elif int(values["id"]) in self._waiting:
            self._learn(int(values["id"]), values["y"])


def _answer(outputs: dict[int, AnyArray], vote: Floats, task: str) -> float | int:
    """What the voting models say together: the mean value, or the class of the mean probabilities."""
    if task == "regression":
        return float(sum(vote[model] * float(output[0]) for model, output in outputs.items()))
    if len(outputs) == 1:
        return int(next(iter(outputs.values())).argmax())
    mixed = sum(vote[model] * torch.from_numpy(output).softmax(0).numpy() for model, output in outputs.items())
    return int(np.asarray(mixed).argmax())


def _by_model(arrays: dict[str, AnyArray]) -> dict[int, dict[str, AnyArray]]:
    found: dict[int, dict[str, AnyArray]] = {}
    for name, array in arrays.items():
        model, _, parameter = name.partition(".")
        found.setdefault(int(model), {})[parameter] = array
    return found
