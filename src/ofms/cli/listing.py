"""`ofms list`."""

from __future__ import annotations

import click


@click.command("list")
def command() -> None:
    """List experiments, policies, presets and datasets."""
    from ofms.data import MODULES, load_dataset
    from ofms.policies import MODULES as POLICIES
    from ofms.policies.registry import policy_summary
    from ofms.runs.config import available, load_experiment, load_preset

    sections = {
        "experiments": {name: load_experiment(name).summary for name in available("experiments")},
        "policies": {name: policy_summary(name) for name in POLICIES},
        "presets": {name: load_preset(name).summary for name in available("presets")},
        "datasets": {name: load_dataset(name).summary for name in MODULES},
    }
    for title, entries in sections.items():
        click.echo(f"{title}:")
        for name, summary in entries.items():
            click.echo(f"  {name:<17}{summary}")
