"""`runai login`, `logout`, `whoami` and `config`: identity and stored settings.

Passwords and tokens come from a prompt or standard input, never from the command line, which all
accounts on the computer can see. No command prints a token.
"""

import sys
from pathlib import Path

import click

from runai.hub_service.cli.commands import projects
from runai.hub_service.cli.framework.cli_config import forget, inside_session, remember
from runai.hub_service.cli.framework.error_reporting import (
    Command,
    Group,
    output_option,
    show_help_without,
)
from runai.hub_service.cli.framework.hub_login import HubLogin, hub_root
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.client import Client
from runai.hub_service.client.connection import config_path, find_connection
from runai.hub_service.wire.errors import InvalidRequest, Unavailable
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import WhoAmI

_FROM_INPUT = "-"


def _reject_visible_token(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> bool:
    """Reject a token on the command line, where `ps` and the shell's history show it."""
    if given not in {None, _FROM_INPUT}:
        raise click.UsageError(
            "A token on the command line is seen by others (`ps`) and kept in the shell's history."
            " Write `runai login URL --token`: it is asked for, or read from standard input, as by"
            " `< FILE`. One that was written there is better revoked, on the hub's page /hub/token."
        )
    return given is not None


@click.command(cls=Command)
@click.argument("url")
@click.option("-u", "--user", metavar="NAME", help="Log in with this name. Default: ask for it.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--token",
    "with_token",
    is_flag=False,
    flag_value=_FROM_INPUT,
    metavar="[-]",
    callback=_reject_visible_token,
    help="Use a token of the hub's page /hub/token instead of a password (with single sign-on)."
    " It is read from the terminal or standard input.",
)
@click.option(
    "--ca",
    metavar="FILE",
    help="Trust only the authority with this PEM certificate, now and in later commands. Keep"
    " the file.",
)
def login(
    url: str, user: str | None, password_stdin: bool, with_token: bool, ca: str | None
) -> None:
    """Log in to a JupyterHub that runs the platform.

    A session needs no login. The password is used once. ~/.config/runai/config.json stores a
    token for the GPU service alone, valid for 90 days.

    \b
    runai login http://127.0.0.1:8000
    runai login https://hub.example.org --token < token.txt
    """  # noqa: D301 - \b is click's mark of a block
    root = hub_root(url)
    if ca is not None:
        if not root.startswith("https:"):
            raise InvalidRequest(
                f"--ca is for an address with https, and {root} has none.",
                hint="Write `runai login https://HOST --ca FILE`.",
            )
        ca = str(Path(ca).absolute())
    with HubLogin(root, ca) as hub:
        with show_progress(f"Asking {hub.root}"):
            hub.check()
        if hub.is_overheard:
            click.echo(f"Careful: {hub.root} is not encrypted; others may read along.", err=True)
        if with_token:
            token = _read_token()
        else:
            name = user or click.prompt("User")
            password = _read_password(name, password_stdin=password_stdin)
            with show_progress(f"Logging in to {hub.root}"):
                hub.log_in(name, password)
                token = hub.mint_token()
        service = hub.service_root()
    with show_progress(f"Asking {service}"), Client(service, token, ca=ca) as client:
        me = client.whoami()
    remember(service, token, ca)
    greeting = f"Logged in to {hub.root} as {me.name}. Projects: {render.listed(me.projects)}."
    click.echo(printable(greeting))
    if inside_session():
        click.echo("This session goes on using its own hub and token.", err=True)


def _read_password(user: str, *, password_stdin: bool) -> str:
    if not password_stdin:
        return str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    return _read_line("password", hint="Leave --password-stdin out.")


def _read_token() -> str:
    hint = "Make one on the hub's page /hub/token."
    if sys.stdin.isatty():
        token = str(click.prompt("Token", hide_input=True, err=True)).strip()
    else:
        token = _read_line("token", hint=hint).strip()
    if not (token.isascii() and token.isprintable()):  # invalid in an HTTP header
        raise InvalidRequest("That is no token: it has characters that no token has.", hint=hint)
    return token


def _read_line(what: str, *, hint: str) -> str:
    line = sys.stdin.readline().rstrip("\n")
    if not line:
        raise InvalidRequest(f"Standard input holds no {what}.", hint=hint)
    return line


@click.command(cls=Command)
def logout() -> None:
    """Forget the stored token.

    The token stays valid until it ends; the hub's page /hub/token revokes it at once.
    """
    click.echo("Logged out." if forget() else "Nobody was logged in here.")


@click.command(cls=Command)
@output_option("table", "json")
def whoami(output: str) -> None:
    """Show your user name, groups, projects and service.

    \b
    runai whoami
    runai whoami -o json
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        me = client.whoami()
        if output in render.DATA:
            render.show_data(me, output)
            return
        render.show_lines(_identity_lines(me, client))


def _identity_lines(me: WhoAmI, client: Client) -> list[tuple[str, str]]:
    default = client.default_project or me.default_project
    return [
        ("User", f"{me.name} (admin)" if me.admin else me.name),
        ("Groups", render.listed(me.groups)),
        ("Projects", render.listed(me.projects)),
        ("Default project", default or "-"),
        ("Service", f"{client.url} (version {me.version})"),
    ]


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or change the stored configuration."""
    if ctx.invoked_subcommand is not None:
        return
    try:
        find_connection()
    except Unavailable:  # nothing is remembered
        show_help_without((), ctx)
    ctx.invoke(show)


@config.command()
@output_option("table", "json")
def show(output: str = "table") -> None:
    """Show the service and the default project in use.

    \b
    runai config show
    runai config show -o json
    """  # noqa: D301 - \b is click's mark of a block
    used = find_connection()
    source = "this session" if inside_session() else str(config_path())
    if output in render.DATA:
        render.show_data({"url": used.url, "project": used.project, "source": source}, output)
        return
    render.show_lines(
        [("Service", used.url), ("Default project", used.project or "-"), ("From", source)]
    )


@config.command()
@click.argument("name", type=PROJECT_NAME)
def project(name: str) -> None:
    """Choose the default project: the same as `runai project use`.

    \b
    runai config project vision
    runai project use vision
    """  # noqa: D301 - \b is click's mark of a block
    projects.choose(name)
