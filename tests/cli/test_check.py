"""`ofms check`, `ofms list`, `ofms data`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ofms.policies import MODULES
from tests.cli.commands import printed_record, run


def test_check_prints_costs_and_budgets(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", models, "--json") == 0
    record = printed_record(capsys)
    storage = sorted(model["storage"] for model in record["models"])
    assert record["smallest_budget"] == storage[-1] + storage[-2]
    assert [row["budget"] for row in record["budgets"]] == [2, 3, 5, 10]
    assert record["not_deployable"] is None


def test_check_reports_whether_a_dictionary_can_be_deployed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", models) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "deployable: yes"
    path = models / "net1.safetensors"
    halved = {name: tensor.to(torch.float16) for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(halved, path)
    assert run("check", models, "--json") == 0, "it can still be simulated"
    *_, last, record = capsys.readouterr().out.splitlines()
    assert last.startswith("deployable: no: net1: 0.")
    assert "float32" in json.loads(record)["not_deployable"]


def test_list_names_experiments_policies_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    listed = capsys.readouterr().out
    names = {line.split()[0] for line in listed.splitlines()}
    assert names >= {"digits", "air", "perfedavg", "theory", "published", *MODULES}
    entries = [line for line in listed.splitlines() if line.startswith("  ")]
    columns = {len(line) - len(line[2:].partition(" ")[2].lstrip()) for line in entries}
    assert len(columns) == 1, "all summaries begin in one column"


def test_data_checks_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "digits") == 0
    assert "1,797 images" in capsys.readouterr().out
