"""`runai up`: the command of `runai.embedded`, with errors as of every command."""

from runai.embedded.up import up as embedded_up
from runai.hub_service.cli.framework.error_reporting import Command

up = Command("up", params=embedded_up.params, callback=embedded_up.callback, help=embedded_up.help)
