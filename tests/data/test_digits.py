"""Handwritten digits, read from scikit-learn's file without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.data import digits


def test_the_file_has_what_scikit_learn_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits._load()
    monkeypatch.setattr(Path, "exists", lambda path: False)
    loaded_images, loaded_labels = digits._load()
    np.testing.assert_array_equal(images, loaded_images, strict=True)
    np.testing.assert_array_equal(labels, loaded_labels, strict=True)
    assert images.shape == (1797, 64)


def test_scikit_learn_is_not_imported() -> None:
    code = "import sys; from ofms.data.digits import dataset; dataset.check(); sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ofms.data.digits.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="it requires scikit-learn"):
        digits.dataset.check()
