"""The ONNX graphs of a deployment's dictionary, for devices without PyTorch: two files for each architecture.

graphs/KEY.outputs.onnx         the network: outputs from its tensors and samples
graphs/KEY.gradient.onnx        the gradient of the fine-tuning loss, from the same and the labels
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ofms.compute.onnx_graphs import KINDS, graphs_key
from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.storage.files import require_writable, write_whole


@dataclass(frozen=True)
class Graphs:
    """The graphs of an architecture, by kind, under the name that models refer to."""

    key: str
    contents: Mapping[str, bytes]


def read_graphs(folder: Path, dictionary: Dictionary) -> dict[int, Graphs]:
    """Exported graphs by model; models that have none are left out."""
    found: dict[int, Graphs] = {}
    if folder.is_dir():
        for model, each in enumerate(dictionary.models):
            key = graphs_key(each, dictionary.task)
            if all(_path(folder, key, kind).is_file() for kind in KINDS):
                found[model] = Graphs(key, {kind: _path(folder, key, kind).read_bytes() for kind in KINDS})
    return found


def export_missing(
    folder: Path, dictionary: Dictionary, echo: Callable[[str], None] = print, *, remedy: str = "omit --edge"
) -> list[Graphs]:
    """Export the architectures that have no graphs yet; nothing is written.

    `remedy` is for a network that cannot be exported, so that it needs devices with PyTorch.
    """
    from ofms.compute.onnx_export import NotExported, export_graphs, require_exporter

    require_exporter()
    exported = {graphs.key for graphs in read_graphs(folder, dictionary).values()}
    new: dict[str, Graphs] = {}
    for model in dictionary.models:
        key = graphs_key(model, dictionary.task)
        if key in exported or key in new:
            continue
        echo(f"exporting the network of {model.name}")
        try:
            new[key] = Graphs(key, export_graphs(model, dictionary.task))
        except NotExported as error:
            reason = f"{model.architecture} needs devices with PyTorch ({error}); {remedy}"
            raise InvalidInput("edge", model.name, reason) from None
    return list(new.values())


def write_graphs(folder: Path, graphs: Iterable[Graphs]) -> None:
    """Write graphs into the folder of a deployment's graphs."""
    require_writable(folder)
    for each in graphs:
        for kind, content in each.contents.items():
            write_whole(_path(folder, each.key, kind), content)


def _path(folder: Path, key: str, kind: str) -> Path:
    return folder / f"{key}.{kind}.onnx"
