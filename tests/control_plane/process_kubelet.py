"""The kubelet of one node that runs the first container of each pod as a process of this machine.

    with ProcessKubelet(plane, folder, gpus=1) as kubelet:
        add_node(plane, NODE, gpus=1, status=kubelet.status)

Each pod has an address of its own (127.x.y.z: all of 127/8 is this machine, and each kubelet has a
unique x) and folders in place of its volumes; the pods that mount a claim share its folder. Pods
that request whole devices get GPU-0, GPU-1 ... Images, limits and other containers are ignored. A
container that fails is started again once, where its pod is `OnFailure`; then it waits.
kwok keeps the node itself alive, and does not touch its pods. Logs are served as kubelets do. For
fixtures that need a real server behind a pod.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from control_plane.calls import ApiRefused
from control_plane.kubelet import Kubelet
from control_plane.plane import ControlPlane

NODE = "processes"
PARTS = range(64, 128)
PORT = 8888
"""Every server listens here, at its pod's own address."""
WATCH_S = 1
"""The server ends a watch after this, which bounds the wait of `__exit__`."""
WITHIN_S = 90
END_WITHIN_S = 10
"""Processes that outlive the container's may keep its output open."""
RESERVATIONS = "runai-reservation"
RESERVED = "run.ai/reserve_for_gpu_index"
IGNORED = "test/ignored"
"""Annotation of pods that never start, as if their image could not be pulled."""
BACK_OFF = "CrashLoopBackOff"
MESSAGE_BYTES = 2048
"""A kubelet keeps so much of a failed container's output as its termination message."""
INHERITED_VARIABLES = ("PATH", "LANG", "VIRTUAL_ENV")
REFERENCE = re.compile(r"\$(\$|\(([^)]+)\))")


class ProcessKubelet:
    """A kubelet that runs containers as processes."""

    def __init__(self, plane: ControlPlane, folder: Path, gpus: int = 0) -> None:
        """Keep volumes in `folder`; no process runs before `with`."""
        self._plane = plane
        self._free = [f"GPU-{number}" for number in range(gpus)]
        self._granting = threading.Lock()
        self._granted: dict[str, list[str]] = {}
        self._folder = folder
        self._logs = Kubelet()
        self._stack = contextlib.ExitStack()
        self._addresses: Iterator[str] = iter(())
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._known: set[str] = set()
        self._terminating: set[str] = set()
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._threads: list[threading.Thread] = []
        self._runs: dict[str, threading.Thread] = {}
        """Thread of each pod's program, by the pod's UID."""
        self.failed: BaseException | None = None

    def __enter__(self) -> Self:
        """Start to watch the node's pods."""
        part = self._stack.enter_context(_own_part_of_this_machine())
        self._addresses = (f"127.{part}.{n // 250}.{n % 250 + 1}" for n in itertools.count())
        self._logs.__enter__()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all running processes; raise the kubelet's own failure, if any."""
        self._stopped.set()
        self._watching.join(WITHIN_S)
        for process in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join(WITHIN_S)
        self._logs.__exit__()
        self._stack.close()
        if self.failed is not None:
            raise self.failed

    @property
    def status(self) -> dict[str, Any]:
        """Return the part of the node's status with the address of the log server."""
        return self._logs.status

    def volume(self, claim: str) -> Path:
        """Return the folder of a claim."""
        folder = self._folder / "claims" / claim
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def process(self, pod: str) -> subprocess.Popen[bytes]:
        """Return the process of a pod, by the pod's name."""
        return self._running[pod]

    # -- watching ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            version = ""
            while not self._stopped.is_set():
                version = self._watch_once(version)
        except BaseException as failed:  # noqa: BLE001  handed over to the test
            self.failed = failed

    def _watch_once(self, version: str) -> str:
        """Watch the node's pods for `WATCH_S`; return the version to continue from."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}"
        try:
            if not version:
                listed = self._plane.request("GET", path)
                for pod in listed["items"]:
                    self._sync_pod(pod)
                return str(listed["metadata"]["resourceVersion"])
            address = f"{path}&watch=true&timeoutSeconds={WATCH_S}&resourceVersion={version}"
            for line in self._plane.lines(address):
                event = json.loads(line)
                if event["type"] == "ERROR":  # too long ago
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "DELETED":
                    self._sync_pod(event["object"])
        except (ApiRefused, httpx.TransportError):
            return ""  # the API server is being restarted
        return version

    def _sync_pod(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        is_terminating = "deletionTimestamp" in pod["metadata"]
        if uid not in self._known:
            self._known.add(uid)
            if not is_terminating and pod["status"].get("phase") == "Pending":
                self._runs[uid] = self._start_thread(self._run, pod)
                return
        if is_terminating and uid not in self._terminating:
            self._terminating.add(uid)
            self._start_thread(self._remove, pod)

    def _start_thread(self, work: Any, pod: dict[str, Any]) -> threading.Thread:
        def guarded() -> None:
            try:
                work(pod)
            except BaseException as failed:  # noqa: BLE001  handed over to the test
                self.failed = failed

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    # -- a pod's life ------------------------------------------------------------------------------

    def _run(self, pod: dict[str, Any]) -> None:
        if IGNORED in pod["metadata"].get("annotations", {}):
            return
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        address, devices = next(self._addresses), self._grant(pod)
        mounts = self._mounts(pod, container)
        env = self._environment(pod, container, mounts, address)
        if devices:
            env.setdefault("NVIDIA_VISIBLE_DEVICES", ",".join(devices))
        words = [*container.get("command", ()), *container.get("args", ())]
        place = Path(container.get("workingDir", ""))
        home = mounts.get(str(place)) or (place if place.is_absolute() and place.is_dir() else None)
        home = home or self._place(pod, "work")
        words = [_moved(_expanded(word, env), mounts) for word in words]
        if not words:  # its image's own command, which only waits (pause)
            self._patch_status(pod, "Running", address, {"running": {"startedAt": _now()}})
            return
        ends: list[dict[str, Any]] = []
        while True:
            end = self._run_container(pod, words, env, home, address, ends)
            is_final = self._stopped.is_set() or pod["metadata"]["uid"] in self._terminating
            if is_final or not end["exitCode"] or pod["spec"].get("restartPolicy") != "OnFailure":
                break
            ends.append(end)
            if len(ends) > 1:  # kubelets wait ten seconds
                self._patch_status(pod, "Running", address, {"waiting": {"reason": BACK_OFF}}, ends)
                return
        self._logs.close(name)
        phase = "Failed" if end["exitCode"] else "Succeeded"
        self._patch_status(pod, phase, address, {"terminated": end}, ends)

    def _run_container(
        self,
        pod: dict[str, Any],
        words: Sequence[str],
        env: dict[str, str],
        home: Path,
        address: str,
        ends: Sequence[dict[str, Any]],
    ) -> dict[str, Any]:
        """Run the container's program; return how it ended, after earlier `ends`."""
        name = pod["metadata"]["name"]
        try:
            process = subprocess.Popen(
                words,
                env=env,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as wrong:  # in containerd's words
            end = {"exitCode": 128, "reason": "StartError", "message": str(wrong)}
            return {**end, "finishedAt": _now()}
        self._running[name] = process
        self._patch_status(pod, "Running", address, {"running": {"startedAt": _now()}}, ends)
        output = b""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._logs.write(name, line.decode(errors="replace").rstrip("\n"))
                output = (output + line)[-MESSAGE_BYTES:]
        code = process.wait()
        status = code if code >= 0 else 128 - code
        end = {"exitCode": status, "reason": "Error" if code else "Completed", "finishedAt": _now()}
        policy = pod["spec"]["containers"][0].get("terminationMessagePolicy")
        if code and policy == "FallbackToLogsOnError":
            end["message"] = output.decode(errors="replace")
        return end

    def _grant(self, pod: dict[str, Any]) -> Sequence[str]:
        """Give a pod whole devices like a device plugin; annotate a reservation like our agent."""
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        with self._granting:
            requested = int(limits.get("nvidia.com/gpu", 0))
            devices, self._free = self._free[:requested], self._free[requested:]
            self._granted[pod["metadata"]["uid"]] = devices
        if pod["metadata"]["namespace"] == RESERVATIONS:
            notes = {RESERVED: devices[0]}
            self._quietly("PATCH", _path(pod), {"metadata": {"annotations": notes}}, "merge-patch")
        return devices

    def _remove(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if process := self._running.get(name):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(pod["metadata"].get("deletionGracePeriodSeconds", 0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if run := self._runs.get(pod["metadata"]["uid"]):
            run.join(END_WITHIN_S)  # a pod's end is written before it is deleted (Kubernetes 1.27)
        with self._granting:
            self._free += self._granted.pop(pod["metadata"]["uid"], ())
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._quietly("DELETE", _path(pod), body)

    def _patch_status(
        self,
        pod: dict[str, Any],
        phase: str,
        address: str,
        state: dict[str, Any],
        ends: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Write all fields in one patch: KubeSpawner reads the containers once the pod runs."""
        is_up = "running" in state
        status = "True" if is_up else "False"
        kinds = ("Initialized", "ContainersReady", "Ready")
        container = pod["spec"]["containers"][0]
        statuses = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": is_up,
                "started": is_up,
                "restartCount": len(ends),
                "state": state,
                "lastState": {"terminated": ends[-1]} if ends else {},
            }
        ]
        body = {
            "metadata": {"uid": pod["metadata"]["uid"]},
            "status": {
                "phase": phase,
                "podIP": address,
                "podIPs": [{"ip": address}],
                "startTime": _now(),
                "containerStatuses": statuses,
                "conditions": [{"type": kind, "status": status} for kind in kinds],
            },
        }
        self._quietly("PATCH", f"{_path(pod)}/status", body, "strategic-merge-patch")

    def _quietly(self, method: str, path: str, body: Any, kind: str = "") -> None:
        """Make a call about a pod that may be gone, or made again, by now."""
        content = f"application/{kind}+json" if kind else "application/json"
        while True:
            try:
                self._plane.request_existing(
                    *(method, path, body), content_type=content, absent=(404, 409)
                )
            except httpx.TransportError:  # the API server is being restarted: once more
                if not self._stopped.wait(0.05):
                    continue
            return

    # -- what a container sees ---------------------------------------------------------------------

    def _mounts(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Path]:
        """Return the real path of each mount path of the container."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        places: dict[str, Path] = {}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                place = self.volume(volume["persistentVolumeClaim"]["claimName"])
            else:
                place = self._place(pod, volume["name"])
            for source in volume.get("projected", {}).get("sources", ()):
                if token_source := source.get("serviceAccountToken"):
                    (place / token_source["path"]).write_text(
                        self._request_token(pod, token_source)
                    )
            for item in volume.get("downwardAPI", {}).get("items", ()):
                (place / item["path"]).write_text(_field(pod, item["fieldRef"]["fieldPath"]))
            places[mount["mountPath"]] = place
        return places

    def _request_token(self, pod: dict[str, Any], token_source: dict[str, Any]) -> str:
        """Return a token of the pod's own, requested like a kubelet."""
        metadata = pod["metadata"]
        bound_to = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        account = pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        audiences = [token_source["audience"]] if "audience" in token_source else []
        spec = {"audiences": audiences, "boundObjectRef": bound_to}
        return str(self._plane.request("POST", path, {"spec": spec})["status"]["token"])

    def _place(self, pod: dict[str, Any], name: str) -> Path:
        place = self._folder / f"{pod['metadata']['uid']}" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _environment(
        self,
        pod: dict[str, Any],
        container: dict[str, Any],
        mounts: dict[str, Path],
        address: str,
    ) -> dict[str, str]:
        env = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        # The image's own Python is the tests'.
        env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH', os.defpath)}"
        homes = [*mounts.values(), self._place(pod, "home")]
        env["HOME"] = str(homes[0])
        env["TMPDIR"] = str(self._place(pod, "tmp"))  # JUPYTER_NO_CONFIG leaves a folder there
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            if source is None:
                env[variable["name"]] = _moved(_expanded(variable.get("value", ""), env), mounts)
            else:
                env[variable["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
        if url := env.get("JUPYTERHUB_SERVICE_URL"):
            # Its own address only, so that every pod can have the same port.
            env["JUPYTERHUB_SERVICE_URL"] = url.replace(urlsplit(url).netloc, f"{address}:{PORT}")
        return env


@contextlib.contextmanager
def _own_part_of_this_machine() -> Iterator[int]:
    """Reserve a network 127.x.0.0/16 that no other kubelet uses meanwhile."""
    for part in PARTS:
        with socket.socket() as mark:
            try:
                mark.bind((f"127.{part}.255.254", PORT))
            except OSError:  # another test worker's
                continue
            yield part
            return
    raise RuntimeError(f"all of 127.{PARTS.start}.0.0 to 127.{PARTS.stop - 1}.255.255 is taken")


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _field(pod: dict[str, Any], path: str) -> str:
    """Return a field of the downward API; an annotation that is missing is empty."""
    if found := re.fullmatch(r"metadata\.(annotations|labels)\['(.+)'\]", path):
        value: str = pod["metadata"].get(found[1], {}).get(found[2], "")
        return value
    part, name = path.split(".")
    return str(pod[part][name])


def _expanded(text: str, env: dict[str, str]) -> str:
    """Expand variables like Kubernetes: `$(NAME)`, and `$$` for a dollar."""
    return REFERENCE.sub(
        lambda found: "$" if found[1] == "$" else env.get(found[2], found[0]), text
    )


def _moved(word: str, mounts: dict[str, Path]) -> str:
    for mounted, place in mounts.items():
        if word == mounted or word.startswith(mounted + "/"):
            return str(place) + word.removeprefix(mounted)
    return word


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
