"""Reports that arrive after their exchange, by hand: MAB needs the probability with which a model was drawn."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.messages import Reports
from ofms.policies.mab import Server, State
from ofms.policies.protocol import LateLearner, SummedUpdates

NOTHING, NONE = np.zeros(2), np.zeros(2, dtype=np.bool_)


def reports(exchange: int, losses: list[list[float]]) -> Reports:
    return Reports(exchange, np.arange(len(losses)), np.array(losses), np.zeros((len(losses), 2), dtype=np.bool_))


def test_mab_learns_from_a_late_loss_with_the_probability_of_then() -> None:
    """Model 1 was drawn with probability 0.25 for three clients; two report 0.2 and 0.4, then the third one 0.6."""
    server, nan = Server(learning_rate=1.0, exploration=0.0), np.nan
    assert isinstance(server, LateLearner)
    then = State(np.zeros(2), np.array([0.75, 0.25]), chosen=1)
    summed = SummedUpdates(3, NOTHING, NOTHING, NOTHING, NONE, NOTHING, awaited=1)
    state, _ = server.learn(then, reports(4, [[nan, 0.2], [nan, 0.4]]), summed)
    # (0.2 + 0.4)/3/0.25 of model 1; cumulative losses are relative to the least one.
    assert state.cumulative_losses == pytest.approx([0.0, 0.8])
    later = State(state.cumulative_losses, np.array([0.1, 0.9]), chosen=0)
    state = server.learn_late(later, then, reports(4, [[nan, 0.6]]), 3)
    assert state.cumulative_losses == pytest.approx([0.0, (0.2 + 0.4 + 0.6) / 3 / 0.25])
    assert (state.chosen, state.pmf.tolist()) == (0, [0.1, 0.9]), "the draw of the open exchange is as it was"
    nobody = SummedUpdates(2, NOTHING, NOTHING, NOTHING, NONE, NOTHING)
    state, _ = server.learn(then, reports(4, [[nan, 0.2], [nan, 0.4]]), nobody)
    assert state.cumulative_losses == pytest.approx([0.0, 0.3 / 0.25]), "without late ones, their mean"
