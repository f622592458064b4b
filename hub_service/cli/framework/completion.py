"""`runai completion`: shell completion script of the commands.

Shells run it at each start: it imports no client.
"""

import click
from click.shell_completion import get_completion_class

from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.cli.framework.error_reporting import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash    eval "$(runai completion bash)"             in ~/.bashrc
    zsh     eval "$(runai completion zsh)"              in ~/.zshrc
    fish    runai completion fish > ~/.config/fish/completions/runai.fish
    """  # noqa: D301 - \b is click's mark of a block
    complete = get_completion_class(shell)
    assert complete is not None, "click knows the shells that the choice offers"
    click.echo(complete(cli, {}, "runai", "_RUNAI_COMPLETE").source())
