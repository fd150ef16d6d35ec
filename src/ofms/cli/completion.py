"""`ofms completion`, and the names that a shell completes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_START_COMPLETION = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.option("--install", is_flag=True, help="Install it for your shell.")
def command(shell: str | None, install: bool) -> None:
    """Print the completion script of a shell, by default that of $SHELL; `ofms completion --install` installs it."""
    from ofms.core.errors import InvalidInput

    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise InvalidInput("shell", shell, f"name one of {', '.join(_SHELLS)}")
    script = _script(shell)
    if not install:
        click.echo(script, nl=False)
        return
    path = _install(shell, script)
    click.echo(f"completion in {path}; open a new terminal to use it")


def _script(shell: str) -> str:
    from ofms.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click supports these shells"
    completion = kind(cli, {}, "ofms", "_OFMS_COMPLETE")
    # Not `source()`, which requires the shell itself.
    template = completion.source_template
    if shell == "zsh":
        # Without its completion system, which the user's .zshrc may not have started, zsh has no `compdef`.
        template = template.replace("    compdef ", f"    {_START_COMPLETION}\n    compdef ")
    return template % completion.source_vars() + "\n"


def _install(shell: str, script: str) -> Path:
    """Write the script where the shell finds it, and for bash and zsh a line that reads it."""
    from ofms.storage.files import write_whole

    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "ofms"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("ofms.fish" if shell == "fish" else f"completion.{shell}")
    write_whole(path, script.encode())
    if shell != "fish":
        settings = home / f".{shell}rc"
        # Bytes: the file is the user's, in any encoding.
        content = settings.read_bytes() if settings.exists() else b""
        line = b'. "' + os.fsencode(path) + b'"'
        if line not in content:
            separator = b"" if not content or content.endswith(b"\n") else b"\n"
            write_whole(settings, content + separator + line + b"\n")
    return path


def complete_experiment(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """Built-in experiments, or files."""
    from ofms.runs.loading import available

    return _items(available("experiments"), start) or [CompletionItem(start, type="file")]


def complete_policy(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    from ofms.policies import MODULES

    return _items(MODULES, start)


def complete_preset(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    from ofms.runs.loading import available

    return _items(available("presets"), start)


def complete_settings_name(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """What `ofms list --settings` takes."""
    from ofms.cli.settings_text import RECORDS
    from ofms.policies import MODULES
    from ofms.runs.loading import available

    return _items([*MODULES, *available("experiments"), *RECORDS, "all"], start)


def complete_assignment(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """The names of the policy's settings, for KEY=VALUE."""
    from ofms.policies import DEFAULT, MODULES
    from ofms.policies.registry import setting_names

    given = context.params.get("policy") or context.params.get("policies") or DEFAULT
    policies = [given] if isinstance(given, str) else list(given)
    names = {name for policy in policies if policy in MODULES for name in setting_names(policy)}
    return _items([f"{name}=" for name in sorted(names)], start)


def _items(names: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(start)]
