"""`c.JupyterHub.spawner_class = "runai-kube"`: KubeSpawner, with GPUs from our scheduler.

The order of a start: options and profile → may it be had? (the service) → pod → queue → launch. The
pod is all there is of a session: the scheduler reads it, and gives its GPUs back with it. Whatever
KubeSpawner can be configured to do stays as it is; what a hook changes is changed last.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import ApiException, V1Pod
from kubespawner import KubeSpawner
from traitlets import Unicode, default

from runai.spawner.admission import Admission, SessionRefused, StartTimeout, minutes
from runai.spawner.choosing import (
    SessionChoosing,
    leave_to_start,
    options_from_form,
    session_request,
)
from runai.spawner.pod import GPU_RESOURCE, SCHEDULER, Seen, environment, look, with_session
from runai.spawner.progress import Progress, merged
from runai.spawner.session import OPTIONS, SessionRequest

LOOK_EVERY_S: Final = 0.5  # at what KubeSpawner's watch keeps up to date: no request is made
FIELDS: Final = (*OPTIONS, "amount", "_xsrf")
"""Of our part of the form."""


class RunaiKubeSpawner(SessionChoosing, KubeSpawner):
    """Start notebook servers as pods, with the part of a GPU that their users choose.

    `start_timeout` (zero-to-jupyterhub's `singleuser.startTimeout`) counts from when the pod has
    its place; before that it may wait `queue_timeout`.
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

    sharing = "Those who share a GPU take turns on it, and nothing keeps their memory apart yet."
    start_timeout: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the base class's
        super().__init__(*args, **kwargs)
        self._request = SessionRequest()
        self._progress = Progress()
        self._made = asyncio.Event()
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
        others = {key: value for key, value in fields.items() if key not in FIELDS}
        options: dict[str, str] = self._options_from_form(others)
        if "profile" in options and "gpus" not in fields:  # a link that chooses a profile
            return options
        ours = {key: value for key, value in fields.items() if key in FIELDS}
        return options | options_from_form(ours)

    async def _profiles(self) -> list[dict[str, Any]]:
        profiles = self.profile_list
        if callable(profiles):
            profiles = await maybe_future(profiles(self))
        return list(self._sorted_dict_values(profiles) or ())

    def _validate_user_options(self, profile_list: list[dict[str, Any]]) -> None:
        """Check what was chosen of the profiles; the base class fails over a choice there is not.

        Raises:
            ValueError: there is no such profile, option or choice.
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
                if self.apply_user_options is leave_to_start:  # else somebody else reads it
                    raise ValueError(f"There is no option {key[:40]!r}.")
            elif key == name:
                if value not in known[name].get("choices", {}):
                    raise ValueError(f"There is no choice {value[:40]!r} of {name}.")
            elif not slug:  # the base class checks it of profiles that are named alone
                _check_unlisted(name, known[name].get("unlisted_choice", {}), value)

    async def load_user_options(self) -> None:
        """Apply the profile; know what is asked for, and that it may be had.

        Raises:
            SessionRefused: it cannot be meant, or never be had.
        """
        self.start_timeout = self._launch_timeout  # which is what a profile may change
        with self._options_accepted():
            session_request(self._chosen())  # said before anything is done
            try:
                await super().load_user_options()
            except ValueError as wrong:
                raise SessionRefused(str(wrong), reason="invalid_option") from wrong
            self._request = session_request(self._decided())
        self._launch_timeout = self.start_timeout
        self.start_timeout += round(self.queue_timeout)
        if self._request.is_workload:
            await self._check(self._request)

    def _chosen(self) -> dict[str, Any]:
        return {k: v for k, v in (self.user_options or {}).items() if k in OPTIONS}

    def _decided(self) -> dict[str, Any]:
        """Return what was chosen, where neither configuration nor profile decide."""
        requests = (self.extra_resource_limits, self.extra_resource_guarantees)
        whole = [str(amounts[GPU_RESOURCE]) for amounts in requests if GPU_RESOURCE in amounts]
        decided = {"project": self.project, "gpus": self.gpus or next(iter(whole), "")}
        return {**self._chosen(), **{key: value for key, value in decided.items() if value}}

    async def _check(self, request: SessionRequest) -> None:
        self._progress.say(f"Asking {request.project} for {request.amount.in_words()}")
        submission = self._submission(request)
        async with self._client(self._begins(f"a dry run in {request.project}")) as client:
            # Without a name: the pod has one of its own.
            await Admission(client, self._progress.say).check(
                submission.model_copy(update={"name": None})
            )

    # -- the pod ---------------------------------------------------------------------------------

    async def get_pod_manifest(self) -> V1Pod:
        """Return the base class's pod, with what was chosen of GPUs."""
        return with_session(await super().get_pod_manifest(), self._request)

    def get_env(self) -> dict[str, Any]:
        """Return the server's environment, with who it is for the service."""
        env: dict[str, Any] = super().get_env()
        workload = f"{self._request.project}/{self.namespace}.{self.pod_name}"
        return {**env, **environment(self._request, workload=workload, api_url=self.api_url)}

    async def _make_create_pod_request(self, pod: V1Pod, request_timeout: float) -> bool:
        """Create the pod, or make room for it and return False.

        As the base class does it, which would log the pod with its tokens when it is refused.
        """
        try:
            await asyncio.wait_for(
                self.api.create_namespaced_pod(self.namespace, pod), request_timeout
            )
        except TimeoutError:
            return False
        except ApiException as error:
            if error.status != 409:
                raise _refused(error) from None
            self.log.info("Removing the pod %s that is still there", self.pod_name)
            await self.stop(True)
            return False
        self._made.set()
        return True

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> asyncio.Future[str]:
        """Start; JupyterHub gives up `queue_timeout` later than `start_timeout`."""
        if self._progress.is_over:  # else somebody may be listening since before the start
            self._progress = Progress()
        self._made.clear()
        self._launch_timeout = self.start_timeout
        self.start_timeout += round(self.queue_timeout)
        started: asyncio.Future[str] = super().start()
        return started

    async def _start(self) -> str:
        starting = asyncio.ensure_future(super()._start())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({starting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                watching.result()  # it ends by giving up alone
            url: str = await starting
        finally:
            await _cancelled(starting, watching)
            self.start_timeout = self._launch_timeout  # which is also how long a stop may take
            self._progress.close()
        return url

    async def _watch(self) -> None:
        """Say what the pod waits for; give up when that, or what follows, takes too long.

        Raises:
            SessionRefused: it did not get its place in time, or is gone.
            StartTimeout: it got its place and did not come up.
        """
        await self._made.wait()
        clock = asyncio.get_running_loop().time
        waits_since, launched = clock(), None if self._request.is_workload else clock()
        seen, sentence = None, ""
        while True:
            pod = self.pod_reflector.pods.get(f"{self.namespace}/{self.pod_name}")
            if pod is None and seen is not None:
                raise SessionRefused("The session was deleted while it waited.", reason="deleted")
            if pod is not None:
                seen = look(pod)
                sentence = seen.sentence or sentence
                self._tell(seen)
                if launched is None and seen.node:
                    launched = clock()
            if launched is not None and clock() - launched > self._launch_timeout:
                raise StartTimeout(self._late(seen or Seen()))
            if launched is None and clock() - waits_since > self.queue_timeout:
                raise SessionRefused(
                    f"No GPU was granted within {minutes(self.queue_timeout)}"
                    f"{': ' + sentence if sentence else ''}. Ask for less, or try again later.",
                    reason="queue_timeout",
                )
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, seen: Seen) -> None:
        if seen.ended:
            raise StartTimeout(f"The server ended as soon as it was started ({seen.ended}).")
        if seen.sentence:
            self._progress.say(f"Waiting: {seen.sentence}")
        elif seen.node:
            self._progress.say(f"Starting JupyterLab on {seen.node}")

    def _late(self, seen: Seen) -> str:
        last = next((event["message"] for event in reversed(self.events)), "")
        return (
            f"The server has its place{' on ' + seen.node if seen.node else ''}, but did not start"
            f" within {minutes(self._launch_timeout)}{': ' + last if last else '.'}"
        )

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the start waits for, and what Kubernetes says of the pod beside it."""
        async for event in merged(self._progress.events(), self._events_of_others()):
            yield event

    async def _events_of_others(self) -> AsyncIterator[dict[str, Any]]:
        async for event in super().progress():
            source = event.get("raw_event", {}).get("source") or {}
            if source.get("component") != SCHEDULER:  # its sentence is told already
                yield event


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """End them, whatever they do: JupyterHub gives an interrupted start a second to be over.

    Before Python 3.12 `wait_for` loses a cancel that comes in the moment of its answer.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=LOOK_EVERY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # nobody else asks what became of them


def _check_unlisted(name: str, rules: Mapping[str, Any], value: str) -> None:
    if not rules.get("enabled"):
        raise ValueError(f"{name} cannot be other than what is on offer.")
    if not re.match(rules.get("validation_regex") or "", value):
        raise ValueError(f"{value[:40]!r} is not allowed as {name}.")


def _refused(error: ApiException) -> SessionRefused:
    """Say why Kubernetes refuses a pod: a ResourceQuota, an admission policy, a right we lack."""
    try:
        message = json.loads(error.body or "{}")["message"]
    except (KeyError, TypeError, ValueError):
        message = error.reason or f"status {error.status}"
    return SessionRefused(f"Kubernetes refuses the pod: {message}", reason="refused")
