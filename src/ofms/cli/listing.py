"""`ofms list`."""

from __future__ import annotations

import click

from ofms.cli.completion import complete_settings_name
from ofms.cli.options import trust_option


@click.command("list")
@click.option(
    "--settings",
    metavar="NAME",
    shell_complete=complete_settings_name,
    help="What can be set, with meaning, default, values and equation: of a policy; of an experiment or a "
    "deployment's folder, with its values; of run, experiment, deployment, or all.",
)
@click.option("--markdown", is_flag=True, help="Print all settings as a page.")
@trust_option
def command(settings: str | None, markdown: bool, trust: tuple[str, ...]) -> None:
    """List experiments, policies, presets and datasets; or settings."""
    from ofms.cli.settings_text import find_settings, settings_page
    from ofms.plugins import trust_of

    if markdown and settings not in (None, "all"):
        raise click.UsageError(f"--markdown prints all settings; leave out {settings}")
    if markdown:
        click.echo(settings_page(), nl=False)
    elif settings is not None:
        click.echo("\n\n\n".join(each.plain() for each in find_settings(settings, trust_of(trust))))
    else:
        _list_all()


def _list_all() -> None:
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
    width = max(len(name) for entries in sections.values() for name in entries)
    for title, entries in sections.items():
        click.echo(f"{title}:")
        for name, summary in entries.items():
            click.echo(f"  {name:<{width}}  {summary}")
