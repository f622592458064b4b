"""Authenticate agents and workers of elastic jobs by the tokens of their pods.

The API server reviews them, so no secret is shared: an agent reports about its own node alone
(KEP-4193: tokens of pods name their node; 1.32), and a worker speaks for its own pod.
"""

import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from fastapi import Request

from runai.hub_service.api.auth.authentication import (
    IDENTIFIED_WITHIN_S,
    Authenticator,
    bearer_token,
)
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.auth.single_flight import AskedOnce
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.objects import job_manifest
from runai.hub_service.wire.errors import Unavailable

AUDIENCE = "runai"
"""What the agents' tokens are for: nobody can use one with the API server itself."""
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT = "system:serviceaccount:"
_NODE = "authentication.kubernetes.io/node-name"
_POD = "authentication.kubernetes.io/pod-name"
_KNOWN_FOR_S = 60.0
_AT_ONCE = 4
"""Reviews under way; anyone who reaches the service can ask for one."""
_LONGEST_TOKEN = 8192
"""Those of pods have some 1,200 characters."""


class _NotOursError(Exception):
    """The API server says that a token is no agent's and no worker's."""


class NodeTokens:
    """Tell agents and workers by their pods' tokens, and ask another for everybody else."""

    def __init__(
        self,
        api: Api,
        account: str,
        others: Authenticator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Agents run as the service account `account`, `namespace:name`.

        `api` is for reviews alone: the scheduler's requests are not to wait behind them.
        """
        self._api = api
        self._user = f"{_ACCOUNT}{account}"
        self._others = others
        self._reviews = AskedOnce[Actor](
            at_once=_AT_ONCE, keep_s=_KNOWN_FOR_S, clock=clock, within_s=IDENTIFIED_WITHIN_S
        )

    async def actor(self, request: Request) -> Actor:
        """Return a node's agent, a worker, or whoever else knows."""
        token = bearer_token(request) or ""
        known = await self.pod(token)
        return await self._others.actor(request) if known is None else known

    async def person(self, name: str) -> Actor:
        """Return a user by name."""
        return await self._others.person(name)

    async def pod(self, token: str) -> Actor | None:
        """Return the agent or the worker whose token it is; None: neither's.

        Raises:
            Unavailable: the API server does not say.
        """
        if not self._may_be_ours(token):
            return None
        digest = sha256(token.encode()).hexdigest()
        try:
            # A refusal is not kept: made-up tokens would displace those of agents.
            return await self._reviews.ask(digest, partial(self._ask, token))
        except _NotOursError:
            return None

    def _may_be_ours(self, token: str) -> bool:
        audiences, subject = read_claims(token)
        if AUDIENCE in audiences and subject == self._user:
            return True
        return job_manifest.AUDIENCE in audiences and subject.startswith(_ACCOUNT)

    async def _ask(self, token: str) -> Actor:
        review = {"spec": {"token": token, "audiences": [AUDIENCE, job_manifest.AUDIENCE]}}
        try:
            status = (await self._api.create(_REVIEWS, review)).get("status", {})
        except ApiError as error:
            raise Unavailable(
                f"Kubernetes does not say whose token it is: {error.message}.",
                hint="Try again in a moment.",
            ) from error
        user: Mapping[str, Any] = status.get("user", {})
        name, extra = str(user.get("username", "")), user.get("extra", {})
        node, pod = ((extra.get(field) or [""])[0] for field in (_NODE, _POD))
        audiences = status.get("audiences", ()) if status.get("authenticated") else ()
        if AUDIENCE in audiences and name == self._user and node:
            return Actor(node, "agent")
        if AUDIENCE in audiences:
            raise _NotOursError
        if job_manifest.AUDIENCE in audiences and pod and name.startswith(_ACCOUNT):
            namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
            return Actor(f"{namespace}/{pod}", "worker")
        raise _NotOursError


def read_claims(token: str) -> tuple[Collection[str], str]:
    """Return audiences and subject that a token claims, unverified; nothing if it is no JWT."""
    parts = token.split(".") if len(token) <= _LONGEST_TOKEN else []
    if len(parts) != 3:
        return (), ""
    try:
        claims = json.loads(urlsafe_b64decode(f"{parts[1]}{'=' * (-len(parts[1]) % 4)}"))
    except (ValueError, RecursionError):
        return (), ""
    if not isinstance(claims, dict):
        return (), ""
    audiences, subject = claims.get("aud"), claims.get("sub")
    listed = audiences if isinstance(audiences, list) else [audiences]
    known = [each for each in listed if isinstance(each, str)]
    return known, subject if isinstance(subject, str) else ""
