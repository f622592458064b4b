"""`runai user`: the accounts of a platform that `runai up` started on this machine.

It edits the data directory and needs its owner's account; the login page reads the accounts again
by itself. Other hubs manage accounts themselves. With `--system-users` an admin says here who has
a name that is given again.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

import click

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.embedded.up import DEFAULT_DATA_DIR
from runai.hub_service.cli.framework.error_reporting import Group, output_option
from runai.hub_service.cli.output import render
from runai.hub_service.processes.accounts.account_directory import (
    AccountDirectory,
    being_forgotten,
)
from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound

_PASSWORD_STDIN: Final = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input."
)


DATA_DIR_OPTION: Final = click.option(
    "--data-dir",
    envvar="RUNAI_DATA_DIR",
    default=str(DEFAULT_DATA_DIR),
    show_default=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Use this data directory of `runai up` (`make up`: .data).",
)


@click.group(cls=Group)
@DATA_DIR_OPTION
@click.pass_context
def user(ctx: click.Context, data_dir: str) -> None:
    """Manage the accounts of a platform started with `runai up`.

    Run it on the platform's machine, as the account that started the platform. A change
    applies from the next login on.
    """
    ctx.obj = expanded(data_dir)


@user.command()
@click.argument("name")
@click.option(
    "--admin",
    is_flag=True,
    help="Make the user a hub admin, with the right to create projects and set quotas.",
)
@click.option(
    "--same-person",
    is_flag=True,
    help="Reuse a removed user's name, with its files, jobs and memberships.",
)
@_PASSWORD_STDIN
@click.pass_obj
def add(data_dir: Path, name: str, admin: bool, same_person: bool, password_stdin: bool) -> None:
    """Make an account, with a generated password unless one is given.

    \b
    runai user add ana
    runai user add ana --admin --password-stdin < password.txt
    """  # noqa: D301 - \b is click's mark of a block
    given = _read_password() if password_stdin else None
    accounts = _existing_accounts(data_dir)
    password = accounts.add(name, given, admin=admin, same_person=same_person)
    click.echo(f"user {name} added")
    if name in accounts.pending_removals():
        click.echo(
            f"The hub has yet to end what {name} had open before; that ends a new login, too."
            " Log in a minute later.",
            err=True,
        )
    if given is None:
        click.echo(f"password: {password}")
    click.echo(f"A project lets them in: runai project set PROJECT --add-member {name}", err=True)


@user.command()
@click.argument("name")
@click.option("--generate", is_flag=True, help="Generate a password and print it.")
@_PASSWORD_STDIN
@click.pass_obj
def passwd(data_dir: Path, name: str, generate: bool, password_stdin: bool) -> None:
    """Replace a password.

    \b
    runai user passwd ana
    runai user passwd ana --generate
    """  # noqa: D301 - \b is click's mark of a block
    accounts = _existing_accounts(data_dir)
    given: str | None = None
    if password_stdin:
        given = _read_password()
    elif not generate:
        given = click.prompt(
            f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
    password = accounts.set_password(name, given)
    click.echo(f"password of {name} replaced")
    if given is None:
        click.echo(f"password: {password}")


@user.command(name="list")
@output_option("table", "json")
@click.pass_obj
def list_(data_dir: Path, output: str) -> None:
    """List the accounts.

    \b
    runai user list
    runai user --data-dir .data list -o json
    """  # noqa: D301 - \b is click's mark of a block
    accounts = _existing_accounts(data_dir).all().values()
    if output in render.DATA:
        render.show_data([{"name": a.name, "admin": a.admin} for a in accounts], output)
        return
    rows = [[a.name, "yes" if a.admin else "-"] for a in accounts]
    render.show_table(("NAME", "ADMIN"), rows)


@user.command()
@click.argument("name")
@click.pass_obj
def remove(data_dir: Path, name: str) -> None:
    """Remove an account, with its servers and logins.

    The running platform stops its notebook servers, revokes its tokens and logins and suspends its
    jobs, all within a minute; a stopped platform does so at its next start. Files, jobs and
    memberships of projects stay.

    \b
    runai user remove ana
    runai user --data-dir .data remove ana
    """  # noqa: D301 - \b is click's mark of a block
    _existing_accounts(data_dir).remove(name)
    click.echo(f"user {name} removed: no login from now on")
    click.echo(
        f"Within a minute the running platform ends what {name} has open (notebook servers, tokens,"
        " pages) and suspends their jobs; one that is not running does so at its next start."
        " Files, jobs and memberships of projects stay:"
        f" `runai user add {name} --same-person` gives them back.",
        err=True,
    )


@user.command()
@click.argument("name")
@click.pass_obj
def same_person(data_dir: Path, name: str) -> None:
    """Take the new uid of a Unix account (--system-users): it is the same person.

    A name whose uid has changed starts nothing until an admin says who it is. With this, waiting
    jobs go on under the new uid; running ones keep the old one until they end. Another person:
    `runai user forget`.

    \b
    runai user same-person dora
    sudo runai user --data-dir /var/lib/runai same-person dora
    """  # noqa: D301 - \b is click's mark of a block
    known = _existing_known_accounts(data_dir, f"user same-person {name}")
    before = known.get(name)
    if before is None:
        raise NotFound(
            f"No account {name} is known here: nothing has run as {name}.",
            hint="A new name needs no command: it is known by its first start.",
        )
    if known.is_being_forgotten(name):
        raise being_forgotten(name)
    found, _ = asyncio.run(AccountDirectory(known).look_up(name))
    if found.uid == before.uid:
        raise Conflict(
            f"{name} has uid {found.uid}, as before: nothing to do.",
            hint=f"Is it another person all the same? `runai user forget {name}`.",
        )
    known.take_uid(name, found.uid)
    known.register(found)
    click.echo(f"{name} has uid {found.uid} now, was {before.uid}: the same person")
    click.echo(
        f"Jobs that wait go on as uid {found.uid}; what runs keeps uid {before.uid} until it ends."
        f" Files keep their owner: `chown -R -h --from={before.uid} {found.uid} {found.home}` gives"
        " them to the new uid.",
        err=True,
    )


@user.command()
@click.argument("name")
@click.pass_obj
def forget(data_dir: Path, name: str) -> None:
    """Forget the person of a Unix account (--system-users): another one may get the name.

    The running platform revokes their tokens, ends and deletes their servers and jobs, and removes
    their hub user with its roles, groups and memberships of projects; a stopped one does so at its
    next start. Until then nothing starts under the name. Nothing in a home is touched. History and
    usage stay under the name.

    Forget a person before the name is given again: with the same uid the next one would be the same
    person.

    \b
    runai user forget dora
    sudo runai user --data-dir /var/lib/runai forget dora
    """  # noqa: D301 - \b is click's mark of a block
    known = _existing_known_accounts(data_dir, f"user forget {name}")
    if known.get(name) is None:
        # Forgotten all the same: the hub may have roles and tokens of the name.
        click.echo(f"No account {name} is known here: nothing has run as {name}.", err=True)
    known.request_forget(name)
    click.echo(f"user {name} is being forgotten: nothing starts under this name")
    click.echo(
        f"Within some minutes the running platform revokes the tokens of {name}, ends and deletes"
        " their servers and jobs, and removes their hub user with roles, groups and memberships of"
        " projects; one that is not running does so at its next start. Then hub.log says that it"
        f" is done, and which files still name {name}. Nothing in a home is touched; history and"
        " usage stay under the name.",
        err=True,
    )


def _existing_known_accounts(data_dir: Path, command: str) -> KnownAccounts:
    directory = DataDirectory(data_dir)
    directory.check_is_ours(command)
    if not directory.root.exists() or not directory.is_of_system_users:
        raise NotFound(
            f"{data_dir} is no data directory of `runai up --system-users`.",
            hint="--data-dir names it. Without --system-users: `runai user remove`.",
        )
    return KnownAccounts(directory.root)


def _existing_accounts(data_dir: Path) -> Accounts:
    """Return the accounts of a data directory.

    Raises:
        Forbidden: it belongs to another account.
        NotFound: it has no accounts.
    """
    directory = DataDirectory(data_dir)
    directory.check_is_ours("user …")
    if not directory.accounts.exists():
        raise NotFound(
            f"There are no accounts in {data_dir}.",
            hint="--data-dir names the directory of `runai up` (of `make up`: .data).",
        )
    return Accounts(directory)


def _read_password() -> str:
    password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise InvalidRequest(
            "Standard input holds no password.", hint="Leave --password-stdin out."
        )
    return password
