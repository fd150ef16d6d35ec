"""Objects of the user's own are imported only if their package is trusted; errors in them are one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust, load_object, loaded_source_key, source_key, trust_of

Writer = Callable[[str, str], Trust]


def test_a_trusted_object_is_imported_from_its_folder(write_module: Writer) -> None:
    trust = write_module("trusted_one", "def make():\n    return 3\n")
    assert load_object("trusted_one:make", field="policy", trusted=trust)() == 3


def test_nothing_is_imported_without_trust(write_module: Writer, tmp_path: Path) -> None:
    trust = write_module("untrusted_one", f"open({str(tmp_path / 'touched')!r}, 'w').close()\nmake = 1\n")
    for trusted in (NO_TRUST, Trust(("other", "untrusted"), trust.folders), Trust(("untrusted_one.inner",))):
        with pytest.raises(InvalidInput, match=r"policy = untrusted_one:make: .* add --trust untrusted_one") as refusal:
            load_object("untrusted_one:make", field="policy", trusted=trusted)
        assert "\n" not in str(refusal.value)
    assert "untrusted_one" not in sys.modules
    assert not (tmp_path / "touched").exists()


def test_trust_in_a_module_does_not_extend_to_its_imports(write_module: Writer) -> None:
    trust = write_module("importing_one", "from os import system\nfrom subprocess import Popen\n")
    for name, home in (("system", "(posix|nt)"), ("Popen", "subprocess")):
        with pytest.raises(InvalidInput, match=f"it would run code from {home}, which is not trusted"):
            load_object(f"importing_one:{name}", field="architecture", trusted=trust)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", r"failing_one\.py, line 2: ZeroDivisionError: division by zero"),
        ("def make(:\n", r"failing_one\.py, line 1: SyntaxError"),
        ("import no_such_module_of_mine\n", r"failing_one\.py, line 1: ModuleNotFoundError: .*no_such_module_of_mine"),
        ("raise SystemExit(3)\n", r"failing_one\.py, line 1: SystemExit: 3"),
        ("raise ValueError('one\\ntwo')\n", r"line 1: ValueError: one two"),
        ("", "module failing_one has no 'make'"),
    ],
)
def test_an_error_in_own_code_is_reported_with_its_line(write_module: Writer, text: str, message: str) -> None:
    trust = write_module("failing_one", text)
    with pytest.raises(InvalidInput, match=message) as refusal:
        load_object("failing_one:make", field="dataset", trusted=trust)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("reference", ["", "make", "a.b", ":make", "a:", "a..b:c", "a-b:c", "a:b.c", "a/b:c", "1a:b"])
def test_a_reference_of_another_form_is_refused(reference: str) -> None:
    with pytest.raises(InvalidInput, match=r"write it as package.module:name"):
        load_object(reference, field="policy", trusted=Trust(("a",)))


def test_a_missing_module_is_named() -> None:
    with pytest.raises(InvalidInput, match="there is no module nowhere_to_be_found in the current folder, "):
        load_object("nowhere_to_be_found.deeper:make", field="policy", trusted=Trust(("nowhere_to_be_found",)))


@pytest.mark.parametrize("marked", [True, False], ids=["with __init__.py", "without"])
def test_the_source_of_a_module_in_a_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "keyed_folder"
    folder.mkdir()
    if marked:
        (folder / "__init__.py").touch()
    trust, keys = Trust(("keyed_folder",), (str(tmp_path),)), []
    for value in (1, 2):
        (folder / "part.py").write_text(f"make = {value}\n")
        load_object("keyed_folder.part:make", field="policy", trusted=trust)
        keys.append(source_key(["keyed_folder.part:make", "digits"], trust))
        assert loaded_source_key(["keyed_folder.part:make", "mlp"]) == keys[-1]
    assert keys[0] != keys[1]
    for name in ("keyed_folder", "keyed_folder.part"):
        del sys.modules[name]


def test_trust_remembers_the_folders_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a run can be repeated from any other folder."""
    (tmp_path / "in_a_file.py").write_text("raise SystemExit\n")
    (tmp_path / "in_a_folder").mkdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    here = (str(tmp_path),)
    assert trust_of("in_a_file") == Trust(("in_a_file",), here)
    assert trust_of(["in_a_folder.deeper", "numpy", "os", "nowhere"]).folders == here
    assert "in_a_file" not in sys.modules
    assert trust_of(()) == NO_TRUST
    assert Trust(("a",), ("x",)) | Trust(("b", "a"), ("x", "y")) == Trust(("a", "b"), ("x", "y"))
    with pytest.raises(InvalidInput, match=r"trust = \./mine: name a package"):
        trust_of("./mine")
