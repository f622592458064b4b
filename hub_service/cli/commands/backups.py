"""`runai backup` and `runai restore`: the databases and secrets of a platform on this machine."""

from pathlib import Path

import click

from runai.embedded.backup.backups import back_up
from runai.embedded.backup.restore import restore as put_back
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.cli.commands.accounts import DATA_DIR_OPTION
from runai.hub_service.cli.framework.error_reporting import Command
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.processes.accounts.home_folder import expanded


@click.command(cls=Command)
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@DATA_DIR_OPTION
def backup(folder: Path | None, data_dir: str) -> None:
    """Copy the databases and secrets of a running or stopped platform.

    It prints the new folder, below FOLDER (default: `backups` in the data directory). A ledger
    on PostgreSQL is not included; use pg_dump.

    \b
    runai backup
    runai backup /mnt/backups --data-dir .data
    """  # noqa: D301 - \b is click's mark of a block
    directory = _directory(data_dir)
    if folder is None:  # in the data directory
        directory.check_is_ours("backup")
    with show_progress("Copying") as report_progress:
        made = back_up(directory, folder, report_progress)
    click.echo(made)


@click.command(cls=Command)
@click.argument("backup", metavar="BACKUP", type=click.Path(path_type=Path))
@DATA_DIR_OPTION
@click.option(
    "--stop-unknown", is_flag=True, help="Stop running workers that are not in the backup."
)
def restore(backup: Path, data_dir: str, stop_unknown: bool) -> None:
    """Restore a backup of a stopped platform.

    Existing files move aside in the data directory; nothing is deleted. The same command
    finishes an interrupted restore.

    \b
    runai restore ~/.local/share/runai/backups/2026-03-01T12-00-00
    runai restore /mnt/backups/monday --stop-unknown
    """  # noqa: D301 - \b is click's mark of a block
    directory = _directory(data_dir)
    directory.check_is_ours("restore …")
    with show_progress("Putting back") as report_progress:
        done = put_back(
            directory, backup.absolute(), stop_unknown=stop_unknown, report_progress=report_progress
        )
    for worker in done.stopped:
        click.echo(f"stopped: {worker}")
    click.echo(f"restored: {', '.join(done.databases)}")
    click.echo(f"what was there before: {done.aside}")


def _directory(data_dir: str) -> DataDirectory:
    return DataDirectory(expanded(data_dir).absolute())
