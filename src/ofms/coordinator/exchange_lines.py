"""Lines of the event log about a closed exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ofms.coordinator.aggregation import Closed


def warning_lines(closed: Closed, models: Sequence[str], name: Callable[[int], str], staleness: int) -> list[str]:
    """What an operator should look at: models that diverged or went back, outliers, answers that will not count.

    `name` gives the name of a device.
    """
    lines: list[str] = []
    for model in closed.quarantined:
        kept = "goes back to its first version" if model in closed.restored else "keeps its last finite version"
        # Nobody else can check that: the operator should know whose word it is.
        who = ", ".join(map(name, closed.left_out.get(model, ())))
        why = f"its updates are not finite{who and f', says {who}'}"
        lines.append(
            f"{models[model]} is quarantined: {why}; it {kept} and is not fine-tuned until `ofms deploy freeze --off`"
        )
    for model in sorted(set(closed.restored) - set(closed.quarantined)):
        lines.append(f"{models[model]} goes back to its first version: fine-tuning made it worse")
    for client, count in closed.outliers.items():
        lines.append(f"{name(client)}: {count} updates are over ten times as long as the others'")
    for client in closed.overdue:
        lines.append(f"{name(client)} is more than {staleness} exchanges late: its answer will not count")
    return lines
