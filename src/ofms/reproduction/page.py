"""The output of a reproduction: tables as Markdown, LaTeX and JSON, charts as PNG and SVG, and one page."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.plugins import NO_TRUST, Trust
from ofms.reproduction.bench import Bench, Section, Size, columns_here, marked_as_quick
from ofms.reproduction.cells import CellStore
from ofms.reproduction.spreading import spread
from ofms.reproduction.targets import TARGETS
from ofms.runs.config import Experiment, load_experiment
from ofms.runs.formatting import format_score
from ofms.runs.result import Result
from ofms.storage.files import require_writable, write_whole

PAGE = "results.md"
_log = logging.getLogger(__name__)


def reproduce_targets(
    target: str,
    *,
    out: str,
    quick: bool = False,
    seeds: int | None = None,
    columns: Sequence[str] = (),
    models: Mapping[str, str] | None = None,
    run: bool = True,
    write: bool = True,
    page: str | None = None,
    trust: Trust = NO_TRUST,
    workers: int | None = None,
    cache: bool = True,
    quiet: bool = False,
    echo: Callable[[str], None] = print,
    rank: int | None = None,
) -> list[Section]:
    """Reproduce one target, or `all` with a page; print and write each section when it is complete.

    Parameters
    ----------
    run
        Whether missing cells are run; otherwise they are left out.
    write
        Whether tables, charts and the page are written; otherwise everything is only printed.
    page
        The page's file; by default in the folder `out`, as everything else.
    quiet
        Show no progress, and print the tables alone.
    rank
        The number of this process, if several run the cells together; only the first prints and writes sections.
    """
    if target != "all" and target not in TARGETS:
        raise InvalidInput("target", target, suggest(target, [*TARGETS, "all"]))
    for name in (*columns, *(models or {})):
        load_experiment(name)
    folder = Path(out)
    store = CellStore(
        folder / "cells",
        models=models,
        prepare=_one_epoch if quick else _unchanged,
        run=run,
        trust=trust,
        workers=workers,
        cache=cache,
        progress=not quiet and not rank,
    )
    bench = Bench(store, list(columns) or columns_here(), Size(quick=quick, seeds=seeds), chosen=bool(columns))
    sections = []
    names = list(TARGETS) if target == "all" else [target]
    if rank is not None and run:
        spread(store, [partial(_ask, TARGETS[name], bench) for name in names])
        if rank:
            return []
    for name in names:
        section = TARGETS[name](bench)
        if quick:
            section = marked_as_quick(section)
        sections.append(section)
        echo(f"\n== {section.title} ==\n{section.text}\n")
        for table in section.tables:
            echo(table.text() + "\n")
        for line in section.warnings:
            _log.warning(line)
        if write:
            write_section(section, folder)
    for line in store.version_warning():
        _log.warning(line)
    if not write:
        return sections
    if target == "all":
        parts = ["ofms", "reproduce", "all", *(["--quick"] if quick else [])]
        parts += ["--seeds", str(seeds)] if seeds else []
        parts += [part for name in columns for part in ("--column", name)]
        parts += [part for name in models or {} for part in ("--models", f"{name}=DIR")]
        parts += [part for package in trust.packages for part in ("--trust", package)]
        path = folder / PAGE if page is None else Path(page)
        require_writable(path.parent)
        write_page(sections, bench, shlex.join(parts), folder, path)
        if not quiet:
            echo(f"page: {path}")
    if not quiet:
        echo(f"tables and figures in {folder}")
    return sections


def _ask(target: Callable[[Bench], Section], bench: Bench, store: CellStore) -> None:
    """Ask a store for the cells of a target."""
    target(replace(bench, store=store))


def _unchanged(experiment: Experiment) -> Experiment:
    return experiment


def _one_epoch(experiment: Experiment) -> Experiment:
    """Pre-train for one epoch: for a quick check, not for figures. Digits take only seconds anyway."""
    if experiment.pretraining is None or experiment.dataset == "digits":
        return experiment
    return msgspec.structs.replace(experiment, pretraining=msgspec.structs.replace(experiment.pretraining, epochs=1))


def write_section(section: Section, folder: Path) -> None:
    """Write a section's tables and charts into a folder."""
    require_writable(folder)
    for table in section.tables:
        figures = (
            table.data if table.data is not None else [dict(zip(table.header, row, strict=True)) for row in table.rows]
        )
        for suffix, content in (
            ("md", f"{table.title}\n\n{table.markdown()}\n"),
            ("tex", f"{table.latex()}\n"),
            ("json", msgspec.json.format(msgspec.json.encode(figures), indent=1).decode() + "\n"),
        ):
            write_whole(folder / f"{table.name}.{suffix}", content.encode())
    for figure in section.figures:
        figure.draw([folder / f"{figure.name}.png", folder / f"{figure.name}.svg"])


def write_page(sections: Sequence[Section], bench: Bench, command: str, folder: Path, page: Path) -> Path:
    """Write one page with all sections; their charts are in `folder`."""
    charts = Path(os.path.relpath(folder.resolve(), page.resolve().parent))
    parts = [
        "# Results\n",
        f"Written by `{command}`, ofms {__version__}; this page is generated. "
        f"A cell with several seeds shows their mean. A dash marks a cell that has not been run.\n",
    ]
    if bench.size.quick:
        parts.append(
            "A quick look: few clients and rounds and, except for digits, dictionaries pre-trained for one epoch "
            "unless given. The commands at the end pre-train them in full and yield other figures.\n"
        )
    for section in sections:
        parts.append(f"## {section.title}\n\n{section.text}\n")
        for table in section.tables:
            parts.append(f"{table.title}.\n\n{table.markdown()}\n")
        for figure in section.figures:
            parts.append(f"{figure.title}.\n\n![{figure.title}]({(charts / figure.name).as_posix()}.png)\n")
    parts.append(_provenance(bench))
    write_whole(page, "\n".join(parts).encode())
    return page


def _provenance(bench: Bench) -> str:
    """Every run behind the page: the command that repeats it, its figures, and how long it took."""
    results = sorted(bench.store.used.values(), key=lambda result: str(result.figures["command"]))
    lines = ["## Every cell\n"]
    if not results:
        return "\n".join([*lines, "None has been run.\n"])
    revisions = {result.config.experiment: result.figures["revision"] for result in results}
    lines.append("Dictionaries (`--models DIR` in a command stands for a given one):\n")
    lines += [f"- {name}: revision `{revision}`" for name, revision in sorted(revisions.items())]
    machines = sorted({str(result.figures["machine"]) for result in results})
    lines.append(f"\nMachines: {'; '.join(machines)}.\n")
    lines.append("| command | mean ± std over clients | regret | seconds |\n|---|---:|---:|---:|")
    lines += [_line(result) for result in results]
    if bench.store.curves.used:
        lines.append(f"\nAnd {', '.join(f'`{name}`' for name in bench.store.curves.used)}: `ofms reproduce server`.")
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    figures = result.figures
    score = format_score(result.score, result.metric)
    return f"| `{figures['command']}` | {score} | {figures['regret']:.2f} | {figures['seconds']:.0f} |"
