"""Mixin of both spawners: choice of project and GPU amount, with the form.

It renders the form, parses user options, and bounds the options that JupyterHub stores.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from jupyterhub import orm
from sqlalchemy import event
from traitlets import Dict, Float, Unicode, default
from traitlets.config import LoggingConfigurable

from runai.hub_service.client import AsyncClient
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.problems import current as current_request
from runai.hub_service.wire.problems import new_id
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.spawner import form
from runai.spawner.admission import SessionRefused
from runai.spawner.session_request import OF_MACHINE, OPTIONS, SessionRequest

LONGEST_OPTIONS: Final = 10_000  # characters of JSON; our form's have about 40
PATIENCE_SECONDS = 1.0  # an unavailable service detects ended sessions itself


class SessionSpawnerMixin(LoggingConfigurable):
    """Mixin of both spawners: spawn form, user options and a client of the service."""

    service_url = Unicode(help="Root of the GPU service as this process reaches it.").tag(
        config=True
    )
    service_token = Unicode(help="Secret shared with the service; it identifies the spawner.").tag(
        config=True
    )
    api_url = Unicode(help="Root of the GPU service as sessions reach it.").tag(config=True)
    queue_timeout = Float(
        600, help="Seconds that a session may wait for its GPU before the start is given up."
    ).tag(config=True)

    sharing: str = COMPUTE_IS_SHARED
    """The form's sentence about sharing a GPU."""
    of_machine: bool = False
    """True if the form has fields for the machine's CPU and memory."""

    accepted_options = Dict(help="The user options of the last start that were not refused.")

    has_failed: bool = False
    """True if the server of the last start ended before it answered, on one machine."""

    user: Any
    name: str
    user_options: Any
    orm_spawner: Any
    is_starting: bool = False
    """True from the beginning of a start until the server runs; still after a cancelled one."""

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Any]:
        return type(self)._form  # noqa: SLF001 - JupyterHub calls it with the spawner

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Any]:
        return leave_to_start

    @default("progress_ready_hook")
    def _default_progress_ready_hook(self) -> Callable[..., Any]:
        return unless_stopped

    async def _form(self) -> str:
        """Return the form's HTML; without an answer of the service it offers no GPU."""
        person = form.Person(
            self.user.name, frozenset(group.name for group in self.user.groups), self.name
        )
        offer = form.Offer()
        trouble = ""
        request_id = self._log_request("what the form can offer")
        try:
            async with self._client(request_id, patience_s=0) as client:
                offer = await form.form_choices(client, person)
        except (RunaiError, TimeoutError) as error:
            self.log.warning(
                "The service did not answer the spawn form: %s [%s]", error, request_id
            )
            trouble = (
                "The GPU service does not answer: only a session without a GPU can start. Load this"
                " page again for the others. If that lasts, an admin finds the reason in the hub's"
                f" log: {request_id}"
            )
        names = (*OPTIONS, *OF_MACHINE) if self.of_machine else OPTIONS
        last = {key: value for key, value in self._last_options().items() if key in names}
        return form.render(
            offer.projects,
            free=offer.free,
            gpu_types=offer.gpu_types,
            device_mib=offer.device_mib,
            unchecked=offer.unchecked,
            last=last,
            trouble=trouble,
            sharing=self.sharing,
            of_machine=self.of_machine,
            is_admin=bool(self.user.admin),
            has_failed=self.has_failed,
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state stored for the next hub, with the accepted options."""
        state: dict[str, Any] = super().get_state()  # type: ignore[misc]  # the spawner's
        return state | (
            {"accepted_options": self.accepted_options} if self.accepted_options else {}
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the state that an earlier hub stored."""
        super().load_state(state)  # type: ignore[misc]  # the spawner's
        self.accepted_options = state.get("accepted_options", {})

    @contextmanager
    def _options_accepted(self) -> Iterator[None]:
        """Accept the user options that the block reads; restore the previous ones on a refusal.

        JupyterHub has already stored them for its list of servers and for the next start.

        Raises:
            SessionRefused: the block raises it, or the options are too long to be stored.
        """
        try:
            yield
            check_length(self.user_options)
        except SessionRefused:
            self.user_options = self.orm_spawner.user_options = self.accepted_options
            self.user.db.commit()
            raise
        self.accepted_options = self.user_options

    def _last_options(self) -> Mapping[str, Any]:
        """Return the options of the last start, unchecked."""
        return self.user_options if isinstance(self.user_options, Mapping) else {}

    def _submission(self, request: SessionRequest, workdir: str = "") -> SubmitRequest:
        """Return the submission for the service.

        Raises:
            SessionRefused: the service does not accept the server's or the user's name.
        """
        try:
            return request.submission(owner=self.user.name, server=self.name, workdir=workdir)
        except RunaiError as error:
            raise SessionRefused.of(error) from error

    def _log_request(self, what: str) -> str:
        """Log a request to the service; return its new request id."""
        request_id = new_id()
        server = f"{self.user.name}/{self.name}" if self.name else self.user.name
        self.log.info("%s: asking the GPU service for %s [%s]", printable(server), what, request_id)
        return request_id

    @asynccontextmanager
    async def _client(
        self, request_id: str, patience_s: float = PATIENCE_SECONDS
    ) -> AsyncIterator[AsyncClient]:
        """Yield a client of the service; its calls, and their logs, have this request id."""
        token = current_request.set(request_id)
        try:
            async with AsyncClient(
                self.service_url, self.service_token, patience_s=patience_s
            ) as client:
                yield client
        finally:
            current_request.reset(token)


def leave_to_start(_spawner: SessionSpawnerMixin, _user_options: dict[str, Any]) -> None:
    """Do nothing: `start` checks the options, as an error here is logged with a traceback."""


def unless_stopped(spawner: SessionSpawnerMixin, ready: dict[str, Any]) -> dict[str, Any]:
    """Return the last event of a start: a failure if the start was stopped meanwhile.

    JupyterHub calls a cancelled start ready until it has stopped the server, a second later.
    """
    if spawner.is_starting:
        return {"progress": 100, "failed": True, "message": "The start was stopped."}
    return ready


def options_from_form(form_data: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Convert form fields to user options; JupyterHub shows an error above the form."""
    try:
        return form.options_of(form_data)
    except RunaiError as error:
        raise SessionRefused.of(error) from error


def session_request(options: Mapping[str, Any]) -> SessionRequest:
    """Parse user options.

    Raises:
        SessionRefused: an option is not valid.
    """
    try:
        return SessionRequest.parse(options)
    except RunaiError as error:
        raise SessionRefused.of(error) from error


# JupyterHub stores a request's options unbounded, before a spawner sees them, and the admin page
# loads them: a value that browsers cannot parse, or a very long one, breaks it for all admins.


def can_be_stored(options: object) -> bool:
    """Return True if options are a JSON object that browsers can parse, of bounded length."""
    try:
        text = json.dumps(options, allow_nan=False)
    except (RecursionError, TypeError, ValueError):
        return False
    return isinstance(options, dict) and len(text) <= LONGEST_OPTIONS


def check_length(options: object) -> None:
    """Check that accepted options can be stored.

    Raises:
        SessionRefused: they are too long.
    """
    if not can_be_stored(options):
        raise SessionRefused(
            f"The options have more than {LONGEST_OPTIONS:,} characters.", reason="invalid_option"
        )


@event.listens_for(orm.Spawner.user_options, "set", active_history=True, retval=True)
def _bounded(_spawner: orm.Spawner, options: object, stored: object, _initiator: object) -> Any:  # noqa: ANN401 - any JSON value
    """Replace options that cannot be stored by the previous ones; the start refuses them."""
    if options is None or can_be_stored(options):
        return options
    return stored if can_be_stored(stored) else {}
