"""Advice about budget, interval and bandwidth as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ofms.core.words import counted
from ofms.drawing.charts import COLOURS, new_figure, write_figure
from ofms.drawing.tables import format_table
from ofms.report.advice import Advice, Option
from ofms.runs.formatting import scale
from ofms.runs.units import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def advice_text(advice: Advice) -> str:
    """The options, the one to take, and how to use it."""
    factor, unit = scale(advice.metric)
    header = ["budget", "interval", "bandwidth", f"error ({unit})", "held", "up /s", "down /s", "bound of OFMS-FT", ""]
    rows = [_row(option, factor, _mark(option, advice)) for option in advice.options]
    limits, take = advice.limits, advice.take
    share = 100 * take.bandwidth / (limits.devices * take.budget)
    error, least = factor * (take.error or 0.0), factor * (advice.best.error or 0.0)
    lines = [
        format_table(header, rows),
        f"{advice.policy}, simulated with {counted(advice.clients, 'client')} and {counted(advice.rounds, 'round')}; "
        "error ± standard error over clients; "
        f"bytes per device, for {limits.devices} devices with a sample every {limits.every:g} s",
        f"take: budget {human_bytes(take.budget)}, interval {take.interval}, bandwidth {share:.3g}%: "
        f"error {error:.2f} {unit}; the least is {least:.2f}, and {100 * advice.tolerance:g} % more counts as good",
        f"try it: {advice.command}",
    ]
    if any(option.enlarged for option in advice.options):
        lines.insert(2, "*: simulated with more than its share of the uplink, so that one client can upload at all")
    return "\n".join(lines)


def draw_advice(advice: Advice, path: Path) -> None:
    """Write a picture: the error against the bytes that a device holds, and against those that it sends and gets."""
    figure = new_figure(9.6, 4.2)
    factor, unit = scale(advice.metric)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, advice, factor, "held")
    _draw(right, advice, factor, "sent")
    left.set_ylabel(f"error ({unit})")
    left.set_xlabel("held by a device (KiB)")
    right.set_xlabel("up and down per device and second (KiB)")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    write_figure(figure, [path])


def _draw(axes: Axes, advice: Advice, factor: float, what: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    known = [option for option in advice.options if option.error is not None]
    less = [option for option in known if _has_less_bandwidth(option, known)]
    for place, interval in enumerate(sorted({option.interval for option in known})):
        some = [option for option in known if option.interval == interval and option not in less]
        bytes_ = [_bytes(option, what) / 2**10 for option in some]
        errors, noise = [factor * (each.error or 0.0) for each in some], [factor * each.noise for each in some]
        axes.errorbar(
            *(bytes_, errors, noise),
            fmt="o-",
            capsize=2,
            color=COLOURS[place],
            label=f"an exchange every {interval} samples",
        )
    if less:
        axes.plot(
            *([_bytes(option, what) / 2**10 for option in less], [factor * (each.error or 0.0) for each in less]),
            marker="s", fillstyle="none", linestyle="", color="#000000", label="with less bandwidth",
        )  # fmt: skip
    take = advice.take
    axes.plot(
        *(_bytes(take, what) / 2**10, factor * (take.error or 0.0)),
        marker="*", markersize=16, linestyle="", color="#000000", label="take this", zorder=3,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _has_less_bandwidth(option: Option, options: Sequence[Option]) -> bool:
    """Whether another option differs by a larger bandwidth alone."""
    return any(
        (other.budget, other.interval) == (option.budget, option.interval) and other.bandwidth > option.bandwidth
        for other in options
    )


def _bytes(option: Option, what: str) -> float:
    return option.held if what == "held" else option.up + option.down


def _mark(option: Option, advice: Advice) -> str:
    if option.error is None:
        return option.reason
    words = ["take" if option == advice.take else "", "least error" if option == advice.best else ""]
    return ", ".join(word for word in words if word)


def _row(option: Option, factor: float, mark: str) -> list[str]:
    known = option.error is not None
    error = f"{factor * (option.error or 0.0):.2f} ± {factor * option.noise:.2f}" if known else "–"
    bytes_ = [human_bytes(value) if known else "–" for value in (option.held, option.up, option.down)]
    # Losses are at most 1, and so is regret per round.
    bound = "–" if option.bound is None else f"{option.bound:.3f}" if option.bound < 1 else "above 1"
    return [
        *(
            human_bytes(option.budget),
            str(option.interval),
            human_bytes(option.bandwidth) + ("*" if option.enlarged else ""),
            error,
            *bytes_,
            bound,
            mark,
        )
    ]
