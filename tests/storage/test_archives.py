"""NumPy archives, complete and damaged."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from ofms.storage.archives import read_npz


def test_arrays_are_read_back(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.eye(2))
    arrays = read_npz(tmp_path / "x.npz")
    assert sorted(arrays) == ["a", "b"]
    assert arrays["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("damage", ["empty", "text", "half", "array", "pickle"])
def test_a_damaged_archive_is_a_value_error(tmp_path: Path, damage: str) -> None:
    file = io.BytesIO()
    if damage == "array":
        np.save(file, np.arange(3))
    elif damage == "pickle":
        np.savez(file, a=np.array([{}], dtype=object))
    else:
        np.savez_compressed(file, a=np.arange(1000))
    content = file.getvalue()
    path = tmp_path / "x.npz"
    path.write_bytes({"empty": b"", "text": b"no archive", "half": content[: len(content) // 2]}.get(damage, content))
    with pytest.raises(ValueError):
        read_npz(path)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "absent.npz")
