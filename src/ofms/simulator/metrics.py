"""Metric, regret and bytes of exchanges, as running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.compute.group import ALONE, Group, gather_rows
from ofms.core.regret import ClientRegret, SharedRegret
from ofms.core.selection_loss import SATURATED, selection_loss
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.simulator.exchange import Exchange
from ofms.simulator.history import History

Line = dict[str, Any]
# Arrays by client that mean nothing for one that was never in the fleet.
_OF_MEMBERS = {"score", "frozen_score", "regret", "held_share", "prediction_share"}
_SUMS = ("score", "frozen_score", "model_score", "down", "up", "most_held", "held_rounds", "predicted_share")


class Measurement:
    """Accumulate exchanges.

    All clients have running sums; the first `history` clients are also recorded exchange by exchange. If clients and
    models come and go (`changing`), means are over the rounds of each client, and a model is compared with a client on
    the rounds in which both were in the fleet.

    With a `group` of processes, each has the sums of its own clients, from number `first` on; what is read or stored is
    of all clients, and all processes make the same calls.
    """

    def __init__(
        self,
        clients: int,
        models: int,
        *,
        loss_bound: str,
        hindsight: bool,
        history: int = 0,
        changing: bool = False,
        group: Group = ALONE,
        first: int = 0,
    ) -> None:
        self.loss_bound, self.hindsight = loss_bound, hindsight
        self.history = History(min(max(0, history - first), clients), group, first)
        self._group, self._clients = group, slice(first, first + clients)
        self.rounds = 0
        self.saturated = 0
        self.score = np.zeros(clients)
        self.frozen_score = np.zeros(clients)
        self.has_frozen = False
        self.model_score = np.zeros((clients, models))
        self.regret: ClientRegret | SharedRegret = ClientRegret.start(clients, models)
        # The rounds of each client, and of each pair of client and model.
        self.own_rounds: Integers | None = None
        self.shared_rounds: Integers | None = None
        if changing:
            self.regret = SharedRegret.start(clients, models)
            self.own_rounds = np.zeros(clients, dtype=np.int64)
            self.shared_rounds = np.zeros((clients, models), dtype=np.int64)
        self.down = np.zeros(clients, dtype=np.int64)
        self.up = np.zeros(clients, dtype=np.int64)
        self.most_held = np.zeros(clients, dtype=np.int64)
        self.held_rounds = np.zeros((clients, models), dtype=np.int64)
        self.predicted_share = np.zeros((clients, models))

    def add(self, exchange: Exchange) -> list[Line]:
        """Add an exchange; return one record per round."""
        client_losses = selection_loss(exchange.client_losses, self.loss_bound)
        losses = selection_loss(exchange.losses, self.loss_bound)
        if self.loss_bound != "raw":
            predicting = exchange.plan.prediction_weights[:, None] > 0
            saturated = (client_losses >= SATURATED).all(axis=2, where=predicting)
            self.saturated += int((saturated & predicting.any(axis=2)).sum())
        traffic = exchange.traffic
        self.down += traffic.down
        self.up += traffic.up
        self.most_held = np.maximum(self.most_held, traffic.held)
        rounds = exchange.span[1] - exchange.span[0]
        self.held_rounds += rounds * exchange.plan.held
        self.predicted_share += rounds * exchange.plan.prediction_weights
        lines, regrets = [], []
        for step in range(rounds):
            self.rounds += 1
            both = self._count_present(exchange)
            self.score += self._own(exchange, exchange.scores[:, step])
            if exchange.frozen_scores is not None:
                self.has_frozen = True
                self.frozen_score += self._own(exchange, exchange.frozen_scores[:, step])
            if self.hindsight:
                scores = exchange.model_scores[:, step]
                self.model_score += scores if both is None else np.where(both, scores, 0.0)
                # An unobserved model may have diverged: then it is not the best one.
                hindsight = np.where(np.isnan(losses[:, step]), np.inf, losses[:, step])
                if exchange.prediction_losses is not None:
                    expected = selection_loss(exchange.prediction_losses[:, step], self.loss_bound)
                else:
                    possible = np.where(exchange.expected_weights > 0, client_losses[:, step], 0.0)
                    expected = (exchange.expected_weights * possible).sum(axis=1)
                if isinstance(self.regret, ClientRegret):
                    self.regret = self.regret.add(expected, hindsight)
                elif both is not None:
                    self.regret = self.regret.add(expected, hindsight, both)
            lines.append(self._line(exchange, step))
            regrets.append(self.regret.value[: self.history.clients])
        kept: dict[str, AnyArray] = {"score": exchange.scores.T}
        if self.hindsight:
            kept["regret"] = np.stack(regrets)
        plan = {"held": exchange.plan.held, "prediction_weights": exchange.plan.prediction_weights}
        first = {"round": np.array(exchange.span[0]), "probability": exchange.expected_weights}
        self.history.add(exchange.index, kept | first | plan)
        return lines

    def _count_present(self, exchange: Exchange) -> Flags | None:
        """[N, K] whether client and model are in the fleet, counted; None if all are throughout the run."""
        if self.own_rounds is None or self.shared_rounds is None:
            return None
        shape = self.shared_rounds.shape
        clients, models = exchange.present or (np.ones(size, dtype=np.bool_) for size in shape)
        both: Flags = clients[:, None] & models
        self.own_rounds = self.own_rounds + clients
        self.shared_rounds = self.shared_rounds + both
        return both

    def _own(self, exchange: Exchange, scores: Floats) -> Floats:
        """[N] scores, 0 for clients that are not in the fleet."""
        return scores if exchange.present is None else np.where(exchange.present[0], scores, 0.0)

    def _mean(self, sums: Floats) -> Floats:
        """[N] per round of each client."""
        mean: Floats = sums / (self.rounds if self.own_rounds is None else np.maximum(self.own_rounds, 1))
        return mean

    def _line(self, exchange: Exchange, step: int) -> Line:
        columns: dict[str, AnyArray] = {
            "mean": self._mean(self.score),
            "score": exchange.scores[:, step],
            "down": exchange.traffic.down,
            "up": exchange.traffic.up,
            "held": exchange.traffic.held,
        }
        if self.hindsight:
            columns["regret"] = self.regret.value
        if self.has_frozen:
            columns["frozen"] = self.frozen_score if self.own_rounds is None else self._mean(self.frozen_score)
        if self.own_rounds is not None:
            columns["known"] = self.own_rounds > 0
        if exchange.present is not None:
            columns["here"] = exchange.present[0]
        return self._line_of(gather_rows(self._group, columns), exchange, step)

    def _line_of(self, columns: dict[str, AnyArray], exchange: Exchange, step: int) -> Line:
        """The record of a round, from columns with a row for each client."""
        known, here = columns.get("known", slice(None)), columns.get("here", slice(None))
        running, first = columns["mean"][known], step == 0
        line: Line = {
            "round": self.rounds,
            "exchange": exchange.index,
            "mean": float(running.mean()),
            "std": float(running.std()),
            "score": float(columns["score"][here].mean()),
        }
        if self.hindsight:
            regret = columns["regret"][known]
            low, middle, high = np.quantile(regret, [0.1, 0.5, 0.9]).tolist()
            line |= {
                "regret": float(regret.mean()),
                "regret_std": float(regret.std()),
                "regret_quantiles": [low, middle, high],
            }
        if self.has_frozen:
            line["frozen"] = float(columns["frozen"][known].mean() / (self.rounds if self.own_rounds is None else 1))
        return line | {
            "down": int(columns["down"].sum()) if first else 0,
            "up": int(columns["up"].sum()) if first else 0,
            "held": float(columns["held"][here].mean()),
            "groups": exchange.grants.groups,
        }

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """The sums so far, as arrays and values."""
        arrays = {name: getattr(self, name) for name in _SUMS}
        arrays |= {"incurred": self.regret.incurred, "hindsight": self.regret.hindsight}
        if self.own_rounds is not None and self.shared_rounds is not None:
            arrays |= {"own_rounds": self.own_rounds, "shared_rounds": self.shared_rounds}
        kept, step = self.history.flatten()
        values = {"rounds": self.rounds, "has_frozen": self.has_frozen, "saturated": self._all_saturated()}
        return gather_rows(self._group, arrays) | kept, values | step

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        for name in _SUMS:
            own = arrays[name][self._clients]
            if own.shape != getattr(self, name).shape or (self._group.size == 1 and own.shape != arrays[name].shape):
                raise ValueError(f"{name} has shape {list(arrays[name].shape)}")
            setattr(self, name, own)
        self.regret = type(self.regret)(arrays["incurred"][self._clients], arrays["hindsight"][self._clients])
        if self.own_rounds is not None:
            self.own_rounds = arrays["own_rounds"][self._clients]
            self.shared_rounds = arrays["shared_rounds"][self._clients]
        self.history.unflatten(arrays, values)
        self.rounds, self.has_frozen = int(values["rounds"]), bool(values["has_frozen"])
        # The sum of all processes: the first one has it.
        self.saturated = int(values.get("saturated", 0)) if self._group.rank == 0 else 0

    @property
    def saturated_share(self) -> float:
        """The share of samples on which the losses of all predicting models reach their bound."""
        rounds = np.full(self.score.shape, self.rounds) if self.own_rounds is None else self.own_rounds
        samples = int(gather_rows(self._group, {"rounds": rounds})["rounds"].sum())
        return self._all_saturated() / max(1, samples)

    def _all_saturated(self) -> int:
        return int(gather_rows(self._group, {"saturated": np.array([self.saturated])})["saturated"].sum())

    def per_client(self) -> dict[str, AnyArray]:
        """Arrays with a leading client axis; NaN for clients that were never in the fleet, except for their bytes."""
        each = self.rounds if self.own_rounds is None else np.maximum(self.own_rounds, 1)[:, None]
        arrays: dict[str, AnyArray] = {
            "score": self._mean(self.score),
            "down": self.down,
            "up": self.up,
            "most_held": self.most_held,
            "held_share": self.held_rounds / each,
            "prediction_share": self.predicted_share / each,
        }
        if self.has_frozen:
            arrays["frozen_score"] = self._mean(self.frozen_score)
        if self.hindsight:
            arrays["regret"] = self.regret.value
            arrays["model_score"] = self.model_score / self.rounds
        if self.own_rounds is not None and self.shared_rounds is not None:
            arrays["rounds"] = self.own_rounds
            if self.hindsight:
                never = self.shared_rounds == 0
                arrays["model_score"] = np.where(never, np.nan, self.model_score / np.maximum(self.shared_rounds, 1))
            for name in _OF_MEMBERS & arrays.keys():
                arrays[name][self.own_rounds == 0] = np.nan
        return gather_rows(self._group, arrays)
