"""The option of commands that work on the files of a platform, and ask no service."""

from typing import Final

import click

from runai.embedded.up import DEFAULT_DATA_DIR

DATA_DIR_OPTION: Final = click.option(
    "--data-dir",
    envvar="RUNAI_DATA_DIR",
    default=str(DEFAULT_DATA_DIR),
    show_default=True,
    type=click.Path(file_okay=False),
    help="The directory that `runai up --data-dir` names (`make up`: .data).",
)
