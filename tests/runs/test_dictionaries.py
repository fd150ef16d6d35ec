"""The dictionary of an experiment is trained once, by one process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.runs import dictionaries
from ofms.runs.config import Experiment, load_experiment
from ofms.runs.dictionaries import train_dictionary
from ofms.storage.locks import FolderLock


@pytest.fixture
def one_epoch() -> Experiment:
    """Digits, trained for one epoch."""
    loaded = load_experiment("digits")
    assert loaded.pretraining is not None
    return msgspec.structs.replace(loaded, pretraining=msgspec.structs.replace(loaded.pretraining, epochs=1))


def test_two_processes_never_train_one_dictionary(
    one_epoch: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, keep = tmp_path / "digits", tmp_path / ".digits.partial"
    keep.mkdir()
    (keep / "done.safetensors").write_bytes(b"of the other process")
    lock = FolderLock(keep)
    with pytest.raises(InvalidInput, match="another process is using it; wait until it ends, or stop it"):
        train_dictionary(one_epoch, "digits", folder, progress=False)
    assert (keep / "done.safetensors").exists()
    lock.close()
    train_dictionary(one_epoch, "digits", folder, progress=False)
    assert len(Dictionary.read(folder)) == 20
    assert not keep.exists()
    monkeypatch.setattr(dictionaries, "pretrain", lambda *rest, **more: pytest.fail("trained again"))
    train_dictionary(one_epoch, "digits", folder, progress=False)
    assert len(Dictionary.read(folder)) == 20, "another process trained it meanwhile"
