"""The samples that clients remember, and the outputs on them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from ofms.core.selection_loss import MOST_LOSS
from ofms.core.states import flatten, unflatten
from ofms.core.typing import Floats
from ofms.policies import observations
from ofms.policies.observations import Recent, Samples
from ofms.policies.session import ClientSession
from tests.policies.late_hedge_runs import make_stream, runs
from tests.problems import fleet_of, policy_of

nan = np.nan


def values(*rows: list[float]) -> Floats:
    """[1, L, K, 1] outputs of regression models."""
    return np.array(rows)[None, ..., None]


def test_samples_and_late_outputs_by_hand() -> None:
    """Three models, memory for three samples; the client holds models 0, then 1, then 0 and 2."""
    recent = Recent.none(1, 3)
    assert recent.unseen().tolist() == [[0, 0, 0]]
    assert recent.mean_losses().tolist() == [[0, 0, 0]]
    recent = recent.add(Samples.of(0, values([1, nan, nan], [2, nan, nan]), np.array([[0.0, 0.0]])), 3)
    assert recent.unseen().tolist() == [[0, 2, 2]]
    assert recent.mean_losses().tolist() == [[2.5, 0, 0]]
    # Model 1 on both past samples and the new one; a second value for a known output does not count.
    recent = recent.add(Samples.of(1, values([9, 5, nan], [nan, 6, nan], [nan, 7, nan]), np.array([[1.0]])), 3)
    assert recent.outputs[0, ..., 0].tolist() == pytest.approx(
        np.array([[1, 5, nan], [2, 6, nan], [nan, 7, nan]]), nan_ok=True
    )
    assert recent.unseen().tolist() == [[1, 0, 3]]
    assert recent.exchange.tolist() == [[0, 0, 1]]
    # The oldest sample is dropped; model 2 is evaluated on one past sample alone.
    recent = recent.add(Samples.of(2, values([nan, nan, 3], [4, nan, 4]), np.array([[2.0]])), 3)
    assert recent.outputs[0, ..., 0].tolist() == pytest.approx(
        np.array([[2, 6, nan], [nan, 7, 3], [4, nan, 4]]), nan_ok=True
    )
    assert recent.known[0].tolist() == [[True, True, False], [False, True, True], [True, False, True]]
    assert recent.unseen().tolist() == [[0, 1, 0]]
    assert recent.targets.tolist() == [[0, 1, 2]]
    assert recent.exchange.tolist() == [[0, 1, 2]]
    assert recent.mean_losses() == pytest.approx(np.array([[(4 + 4) / 2, (36 + 36) / 2, (4 + 4) / 2]]))
    # Outputs on past samples alone, as on a device.
    recent = recent.add(Samples.of(3, values([nan, 8, nan]), np.zeros((1, 0))), 3)
    assert recent.outputs[0, -1, :, 0].tolist() == [4, 8, 4]
    assert recent.targets.shape == (1, 3)


def test_class_outputs_are_kept_as_log_probabilities() -> None:
    logits = np.full((1, 1, 2, 2), nan)
    logits[0, 0, 1] = [0.0, np.log(3.0)]
    recent = Recent.none(1, 2).add(Samples.of(0, logits, np.array([[1]])), 5)
    assert np.exp(recent.outputs[0, 0, 1]) == pytest.approx(np.array([0.25025, 0.74975]), abs=1e-6)
    assert recent.mean_losses() == pytest.approx(np.array([[0, -np.log(0.74975)]]), abs=1e-5)


def test_states_that_grow_can_be_saved_and_loaded() -> None:
    """Recent samples and exchanges have no length in the initial state."""
    fleet = fleet_of([1] * 4, [2, 3], rounds=9)
    session = ClientSession(policy_of("late-hedge", fleet, window=4), fleet.schedule)
    template = session.join(fleet.catalogue, fleet.budgets, np.arange(2))
    states = [found.state for found in runs(fleet, *make_stream(2, 9, 4, 3), window=4)]
    assert [state.recent.targets.shape[1] for state in states] == [0, 1, 2, 3, 4, 4, 4, 4, 4]
    for state in states:
        arrays, plain = flatten(state)
        content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        again, same = flatten(unflatten(template, safetensors.numpy.load(content), json.loads(json.dumps(plain))))
        assert same == plain
        assert again.keys() == arrays.keys()
        for name, array in arrays.items():
            found = again[name]
            assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def test_only_axes_of_length_0_may_grow() -> None:
    template = Recent.none(2, 3)
    arrays, plain = flatten(template)
    grown = arrays | {"targets": np.zeros((2, 7))}
    assert unflatten(template, grown, plain).targets.shape == (2, 7)
    with pytest.raises(ValueError, match="targets is"):
        unflatten(template, arrays | {"targets": np.zeros((3, 7))}, plain)
    with pytest.raises(ValueError, match="outputs is"):
        unflatten(template, arrays | {"outputs": np.zeros((2, 5, 4, 1), dtype=np.float32)}, plain)
    with pytest.raises(ValueError, match="outputs is"):
        unflatten(template, arrays | {"outputs": np.zeros((2, 5, 3), dtype=np.float32)}, plain)


def test_samples_of_some_clients() -> None:
    outputs, targets = np.arange(12.0).reshape(3, 2, 2, 1), np.arange(3.0)[:, None]
    some = Samples(outputs, targets, np.array([[4], [5], [6]])).rows(np.array([2, 0]))
    assert some.outputs[..., 0].tolist() == [[[8, 9], [10, 11]], [[0, 1], [2, 3]]]
    assert (some.targets.tolist(), some.exchange.tolist()) == ([[2], [0]], [[6], [4]])


def test_losses_by_use_by_hand() -> None:
    """Three clients, two models, two samples with target 0; the second client updates nothing.

    The mean losses of the first client are (1 + 4)/2 and 0, as its second model was never evaluated; those of the third
    are 9 and (1 + 1)/2.
    """
    outputs = np.array(
        [[[1, nan], [2, nan]], [[5, 5], [5, 5]], [[3, 1], [nan, 1]]],
    )[..., None]
    recent = Recent.none(3, 2).add(Samples.of(0, outputs, np.zeros((3, 2))), 2)
    found = recent.losses_by_use(np.array([[2.0, 1.0], [0.0, 0.0], [0.5, 0.0]]))
    assert found == pytest.approx(np.array([[5.0, 0.0], [nan, nan], [4.5, nan]]), nan_ok=True)
    assert np.isnan(recent.losses_by_use(np.zeros((3, 2)))).all()
    assert recent.losses_by_use(np.zeros((3, 2))).shape == (3, 2)
    huge = recent.losses_by_use(np.full((3, 2), 1e300))
    assert (huge[2] == MOST_LOSS).all(), "products that overflow are cut"


def test_mean_losses_are_exact_though_outputs_have_single_precision() -> None:
    """The loss of 0.1 in single precision is its square in double precision; unevaluated models have no samples."""
    recent = Recent.none(1, 2).add(Samples.of(0, np.array([[[[0.1], [nan]]]]), np.zeros((1, 1))), 1)
    assert recent.mean_losses().tolist() == [[float(np.float32(0.1)) ** 2, 0]]
    for each in (recent, Recent.none(2, 3)):
        assert [each.unseen().dtype.name, each.exchange.dtype.name] == ["int64", "int64"]


@pytest.mark.parametrize("models", [1, 2])
def test_late_class_outputs_complete_what_is_known_and_replace_nothing(models: int) -> None:
    logits = np.full((1, 2, models, 2), nan)
    logits[0, 0, 0] = [0.0, np.log(3.0)]
    recent = Recent.none(1, models).add(Samples.of(0, logits, np.array([[1, 0]])), 5)
    before = recent.outputs.copy()
    late = np.full((1, 2, models, 2), nan)
    late[0, 0, 0] = [5.0, 0.0]
    late[0, 1, -1] = [0.0, 0.0]
    after = recent.add(Samples.of(1, late, np.zeros((1, 0), dtype=np.int64)), 5).outputs
    assert after[0, 0] == pytest.approx(before[0, 0], nan_ok=True), "the first output of a model counts"
    assert after[0, 1, -1] == pytest.approx(np.log([0.5, 0.5])), "log-probabilities, also of a single model"
    assert np.isnan(after).sum() == 2 * (2 * models - 2), "nothing else is known"


@pytest.mark.parametrize("width", [1, 2])
def test_pools_of_the_last_samples_by_hand(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of the outputs of models with a weight, of each client with its own; others need not be known."""
    monkeypatch.setattr(observations, "_AT_ONCE", 2)
    outputs = np.arange(3 * 4 * 3 * width, dtype=np.float32).reshape(3, 4, 3, width)
    weights = np.array([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    expected = np.einsum("nk,nrkc->nrc", weights, outputs.astype(np.float64))
    known = np.where((weights > 0)[:, None, :, None], outputs, np.float32(np.nan))
    recent = Recent(known, np.zeros((3, 4)), np.zeros((3, 4), dtype=np.int64))
    for last in (1, 2, 4):
        assert recent.pools(last, weights) == pytest.approx(expected[:, -last:])


def test_nothing_is_kept_in_single_precision_and_without_a_width() -> None:
    nothing = Recent.none(2, 3)
    assert (nothing.outputs.shape, nothing.outputs.dtype.name) == ((2, 0, 3, 0), "float32")
    assert (nothing.width, nothing.known.shape) == (0, (2, 0, 3))
