"""`make audit`: licences that are accepted, and what is said about vulnerabilities."""

from __future__ import annotations

import importlib.util
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", Path(__file__).parents[1] / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND MIT", True),
        ("(GPL-2.0-only OR MIT) AND Zlib", True),
        ("(GPL-2.0-only AND MIT) OR AGPL-3.0-only", False),
        ("MIT OR (GPL-2.0-only", False),
        ("some licence of our own", False),
        ("", False),
    ],
)
def test_expressions_of_licences(expression: str, accepted: bool, audit: ModuleType) -> None:
    assert audit.is_accepted(expression) is accepted


def metadata(*fields: tuple[str, str]) -> Message:
    message = Message()
    for name, value in fields:
        message[name] = value
    return message


def test_the_licence_of_a_package(audit: ModuleType) -> None:
    classifier = "License :: OSI Approved :: BSD License"
    assert audit.licence_of(metadata(("License-Expression", "MIT"), ("License", "GPL"))) == "MIT"
    assert audit.licence_of(metadata(("License", "Apache 2.0"))) == "Apache-2.0"
    assert audit.licence_of(metadata(("License", "Copyright of all:\n…"), ("Classifier", classifier))) == "BSD"
    assert audit.licence_of(metadata(("Classifier", "Programming Language :: Python"))) == ""
    assert not audit.is_accepted(audit.licence_of(metadata(("License", "GPL-3.0-only"))))


def test_unknown_licences_are_named(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    packages = [("sound", "1.0", "MIT"), ("copied", "2.1", "GPL-3.0-only"), ("nameless", "0.1", "")]
    assert audit.print_licences(packages) == ["copied", "nameless"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["copied", "nameless", "sound"]
    assert [line.endswith("not accepted") for line in lines] == [True, True, False]


def test_packages_that_were_not_looked_up_are_no_success(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit itself ends with 0 where the service knows none of the packages."""
    clean = {"name": "numpy", "version": "2.0", "vulns": []}
    skipped = {"name": "click", "skip_reason": "not found"}
    own = {"name": "ofms", "skip_reason": "not found"}
    broken = {"name": "rich", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
    for packages, status, line in (
        ([clean, own], 0, "vulnerabilities: 0 known"),
        ([clean, skipped], 2, "vulnerabilities: 0 known; 1 of 2 packages not looked up: pypi.org cannot be reached"),
        ([clean, broken], 1, "vulnerabilities: 1 known"),
    ):
        monkeypatch.setattr(audit, "run_pip_audit", lambda packages=packages: {"dependencies": packages})
        monkeypatch.setattr(audit, "distributions", list)
        assert audit.main() == status
        assert capsys.readouterr().out.splitlines()[-1] == line
    monkeypatch.setattr(audit, "run_pip_audit", lambda: "no route to host")
    assert audit.main() == 2
    assert "vulnerabilities: not looked up: no route to host" in capsys.readouterr().out
