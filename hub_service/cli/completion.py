"""`runai completion`: the script that teaches a shell the commands, options and names."""

import click
from click.shell_completion import get_completion_class

from runai.hub_service.cli.reporting import Command
from runai.hub_service.cli.root import cli


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
