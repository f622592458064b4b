"""`c.JupyterHub.spawner_class = "runai-kube"`: KubeSpawner, with GPUs from our scheduler.

The order of a start: options and profile → dry run at the service → pod → queue → launch. The pod
is the session's only state: the scheduler reads it, and frees its GPUs when it ends. Every setting
of KubeSpawner works unchanged; hooks are applied last.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import ApiException, V1Pod
from kubespawner import KubeSpawner
from traitlets import Unicode, default

from runai.spawner.admission import Admission, SessionRefused, StartTimeout, minutes
from runai.spawner.first_answer import end_wait_with_server, unless_ended
from runai.spawner.pod import (
    GPU_RESOURCE,
    SCHEDULER,
    PodStart,
    environment,
    start_state,
    with_session,
)
from runai.spawner.session_request import OPTIONS, SessionRequest
from runai.spawner.session_spawner import (
    SessionSpawnerMixin,
    leave_to_start,
    options_from_form,
    session_request,
)
from runai.spawner.start_progress import StartProgress, merged

POLL_INTERVAL_S: Final = 0.5  # reads KubeSpawner's reflector: no request to the API server
FIELDS: Final = (*OPTIONS, "amount", "_xsrf")
"""Names of our own form fields."""


class RunaiKubeSpawner(SessionSpawnerMixin, KubeSpawner):
    """A KubeSpawner: each pod gets the part of a GPU that its user chooses.

    `start_timeout` (zero-to-jupyterhub's `singleuser.startTimeout`) counts from the binding of the
    pod; before that it may wait `queue_timeout`.
    """

    project = Unicode(
        help="Project of a profile (`kubespawner_override`) or of all sessions, whatever their"
        " users chose; empty: they choose."
    ).tag(config=True)
    gpus = Unicode(
        help="Amount of GPU of a profile (`kubespawner_override`) or of all sessions, such as 0.5"
        " or 8 GiB, whatever their users chose; empty: they choose, unless the profile requests"
        " nvidia.com/gpu."
    ).tag(config=True)

    sharing = (
        "Compute is shared equally with active users of the same GPU. PyTorch and TensorFlow keep"
        " to your memory in images built like the platform's; other programs have no limit."
    )
    start_timeout: int
    server: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the base class's
        super().__init__(*args, **kwargs)
        self._request = SessionRequest()
        self._gpu_types: Sequence[str] = ()
        self._progress = StartProgress()
        self._pod_created = asyncio.Event()
        self._pod_uid = ""
        self._pod_start: PodStart | None = None
        self._awaits_answer = False
        self._launch_timeout = self.start_timeout

    # -- options ---------------------------------------------------------------------------------

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return self._options_from_fields

    async def _form(self) -> str:
        """Return the profiles of the configuration, if any, and the choice of GPUs."""
        profiles = await self._profiles()
        chosen = await super()._form()
        return self._render_options_form(profiles) + chosen if profiles else chosen

    def _options_from_fields(self, fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Convert the fields of the profiles, and ours, to user options."""
        profile_fields = {key: value for key, value in fields.items() if key not in FIELDS}
        options: dict[str, str] = self._options_from_form(profile_fields)
        if "profile" in options and "gpus" not in fields:  # a link with ?profile=…
            return options
        ours = {key: value for key, value in fields.items() if key in FIELDS}
        return options | options_from_form(ours)

    async def _profiles(self) -> list[dict[str, Any]]:
        profiles = self.profile_list
        if callable(profiles):
            profiles = await maybe_future(profiles(self))
        return list(self._sorted_dict_values(profiles) or ())

    def _validate_user_options(self, profile_list: list[dict[str, Any]]) -> None:
        """Check the profile options; the base class fails on an unknown choice.

        Raises:
            ValueError: the profile, option or choice does not exist.
        """
        options = {k: v for k, v in (self.user_options or {}).items() if k not in OPTIONS}
        if wrong := sorted(k for k, v in options.items() if not isinstance(v, str)):
            raise ValueError(f"The option {wrong[0][:40]!r} is not text.")
        super()._validate_user_options(profile_list)
        slug = options.pop("profile", "")
        profile = self._get_profile(slug, profile_list) if profile_list else {}
        known = profile.get("profile_options", {})
        for key, value in options.items():
            name = key.removesuffix("--unlisted-choice")
            if name not in known:
                if self.apply_user_options is leave_to_start:  # else a hook of the admin reads it
                    raise ValueError(f"There is no option {key[:40]!r}.")
            elif key == name:
                if value not in known[name].get("choices", {}):
                    raise ValueError(f"There is no choice {value[:40]!r} of {name}.")
            elif not slug:  # the base class checks named profiles only
                _check_unlisted(name, known[name].get("unlisted_choice", {}), value)

    async def load_user_options(self) -> None:
        """Apply the profile, resolve the session's request, and dry-run it at the service.

        Raises:
            SessionRefused: an option is not valid, or the service refuses the request.
        """
        self.start_timeout = self._launch_timeout  # a profile may change this value
        with self._options_accepted():
            session_request(self._session_options())  # refuse before applying anything
            try:
                await super().load_user_options()
            except ValueError as wrong:
                raise SessionRefused(str(wrong), reason="invalid_option") from wrong
            self._request = session_request(self._effective_options())
        self._launch_timeout = self.start_timeout
        self.start_timeout += round(self.queue_timeout)
        self._gpu_types = ()
        if self._request.is_workload:
            await self._dry_run(self._request)

    def _session_options(self) -> dict[str, Any]:
        """Return the user options without those of profiles."""
        return {k: v for k, v in (self.user_options or {}).items() if k in OPTIONS}

    def _effective_options(self) -> dict[str, Any]:
        """Return the user's options, overridden by configuration and profile."""
        requests = (self.extra_resource_limits, self.extra_resource_guarantees)
        whole = [str(amounts[GPU_RESOURCE]) for amounts in requests if GPU_RESOURCE in amounts]
        overrides = {"project": self.project, "gpus": self.gpus or next(iter(whole), "")}
        return self._session_options() | {key: value for key, value in overrides.items() if value}

    async def _dry_run(self, request: SessionRequest) -> None:
        """Dry-run the request at the service; store the types of GPU that it resolves."""
        self._progress.append(f"Asking {request.project} for {request.amount.in_words()}")
        submission = self._submission(request)
        async with self._client(self._log_request(f"a dry run in {request.project}")) as client:
            # Without a name: the pod has its own.
            reply = await Admission(client, self._progress.append).check(
                submission.model_copy(update={"name": None})
            )
        # The service knows which nodes' types the words of a name mean.
        self._gpu_types = reply.workloads[0].gpu_types

    # -- the pod ---------------------------------------------------------------------------------

    async def get_pod_manifest(self) -> V1Pod:
        """Return the base class's pod with the chosen GPUs."""
        return with_session(await super().get_pod_manifest(), self._request, self._gpu_types)

    def get_env(self) -> dict[str, Any]:
        """Return the server's environment with its identity for the service."""
        env: dict[str, Any] = super().get_env()
        workload = f"{self._request.project}/{self.namespace}.{self.pod_name}"
        return {**env, **environment(self._request, workload=workload, api_url=self.api_url)}

    async def _make_create_pod_request(self, pod: V1Pod, request_timeout: float) -> bool:
        """Create the pod; return False on a timeout or after deleting its old namesake.

        Replaces the base class's method, which logs a refused pod with its tokens.
        """
        try:
            created: V1Pod = await asyncio.wait_for(
                self.api.create_namespaced_pod(self.namespace, pod), request_timeout
            )
        except TimeoutError:
            return False
        except ApiException as error:
            if error.status != 409:
                raise _refused(error) from None
            self.log.info("Deleting the old pod %s of the same name", self.pod_name)
            await self.stop(True)
            return False
        self._pod_uid = created.metadata.uid
        self._pod_created.set()
        return True

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> asyncio.Future[str]:
        """Start the server; JupyterHub's timeout is `start_timeout` plus `queue_timeout`."""
        if self._progress.is_over:  # else keep it: a browser may already listen to it
            self._progress = StartProgress()
        self._pod_created.clear()
        self._pod_start = None
        self.is_starting = True
        self._launch_timeout = self.start_timeout
        self.start_timeout += round(self.queue_timeout)
        started: asyncio.Future[str] = super().start()
        return started

    async def _start(self) -> str:
        try:
            url: str = await unless_ended(super()._start(), self._watch_start())
            self.is_starting = False
        finally:
            self.start_timeout = self._launch_timeout  # also bounds a stop
            self._progress.close()
        end_wait_with_server(self.server, self._watch_pod)
        return url

    async def poll(self) -> int | None:
        """Return the exit status, None while the server runs or its first answer is awaited.

        The base class deletes an ended pod, maybe before the watch has read its status.
        """
        return None if self._awaits_answer else await super().poll()

    async def _watch_start(self) -> NoReturn:
        """Report why the pod waits, until it ends or its queue or launch takes too long.

        Raises:
            SessionRefused: the pod was not bound within `queue_timeout`, or as `_update_pod_start`.
            StartTimeout: the pod was bound, but its server did not start.
        """
        await self._pod_created.wait()
        clock = asyncio.get_running_loop().time
        waits_since = clock()
        launched = None if self._request.is_workload else clock()  # only a workload is queued
        sentence = ""
        while True:
            pod_start = self._update_pod_start()
            sentence = pod_start.sentence or sentence
            self._report_wait(pod_start)
            if launched is None and pod_start.node:
                launched = clock()
            if launched is not None and clock() - launched > self._launch_timeout:
                raise StartTimeout(self._launch_error(pod_start))
            if launched is None and clock() - waits_since > self.queue_timeout:
                raise SessionRefused(
                    f"No GPU was granted within {minutes(self.queue_timeout)}"
                    f"{': ' + sentence if sentence else ''}. Ask for less, or try again later.",
                    reason="queue_timeout",
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _watch_pod(self) -> NoReturn:
        """Wait until the pod's server has ended.

        Raises:
            SessionRefused: as `_update_pod_start`.
        """
        self._awaits_answer = True
        try:
            while True:
                self._update_pod_start()
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            self._awaits_answer = False

    def _update_pod_start(self) -> PodStart:
        """Read this start's pod again; return its state.

        Raises:
            SessionRefused: its server has ended, or it was deleted.
        """
        reflector = self.pod_reflector
        pod = reflector.pods.get(f"{self.namespace}/{self.pod_name}")
        # Without the uid it might be an old pod of the same name.
        if pod is not None and pod["metadata"]["uid"] == self._pod_uid:
            self._pod_start = start_state(pod)
        elif self._pod_start is not None and reflector.first_load_future.done():
            self._pod_start = PodStart(is_deleted=True)
        pod_start = self._pod_start or PodStart()
        if pod_start.is_deleted:
            raise SessionRefused("The session was deleted while it waited.", reason="deleted")
        if pod_start.end is not None:
            raise SessionRefused.of_end(pod_start.end.how, pod_start.end.lines)
        return pod_start

    def _report_wait(self, pod_start: PodStart) -> None:
        """Show why the pod waits, or on which node it starts."""
        if pod_start.sentence:
            self._progress.append(f"Waiting: {pod_start.sentence}")
        elif pod_start.node:
            self._progress.append(f"Starting JupyterLab on {pod_start.node}")

    def _launch_error(self, pod_start: PodStart) -> str:
        """Return the sentence about a bound pod whose server did not start in time."""
        last = next((event["message"] for event in reversed(self.events)), "")
        return (
            f"The server has its place{' on ' + pod_start.node if pod_start.node else ''}, but did"
            f" not start within {minutes(self._launch_timeout)}{': ' + last if last else '.'}"
        )

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the start's progress, merged with Kubernetes' events of the pod."""
        async for event in merged(self._progress.events(), self._pod_events()):
            yield event

    async def _pod_events(self) -> AsyncIterator[dict[str, Any]]:
        async for event in super().progress():
            source = event.get("raw_event", {}).get("source") or {}
            if source.get("component") != SCHEDULER:  # already reported as the reason to wait
                yield event


def _check_unlisted(name: str, rules: Mapping[str, Any], value: str) -> None:
    """Raise ValueError if the `rules` of a profile option do not allow a value of the user's."""
    if not rules.get("enabled"):
        raise ValueError(f"{name} cannot be other than what is on offer.")
    if not re.match(rules.get("validation_regex") or "", value):
        raise ValueError(f"{value[:40]!r} is not allowed as {name}.")


def _refused(error: ApiException) -> SessionRefused:
    """Return Kubernetes' reason to refuse a pod: a ResourceQuota, an admission policy, RBAC."""
    try:
        message = json.loads(error.body or "{}")["message"]
    except (KeyError, TypeError, ValueError):
        message = error.reason or f"status {error.status}"
    return SessionRefused(f"Kubernetes refuses the pod: {message}", reason="refused")
