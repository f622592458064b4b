"""Authenticate agents and workers of elastic jobs by their pods' service account tokens.

The API server reviews each token, so there is no shared secret. An agent reports about its own node
alone (KEP-4193: tokens of pods name their node; 1.32), and a worker speaks for its own pod.
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
from runai.hub_service.api.auth.single_flight import SingleFlight
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.objects import job_manifest
from runai.hub_service.wire.errors import Unavailable

AUDIENCE = "runai"
"""Audience of agents' tokens; the API server itself accepts none of them."""
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT = "system:serviceaccount:"
_NODE = "authentication.kubernetes.io/node-name"
_POD = "authentication.kubernetes.io/pod-name"
_KNOWN_FOR_S = 60.0
_AT_ONCE = 4
"""Concurrent reviews; any client that reaches the service can cause one."""
_LONGEST_TOKEN = 8192
"""Characters; tokens of pods have some 1,200."""


class _UnknownTokenError(Exception):
    """The API server's answer for a token of neither an agent nor a worker."""


class NodeTokenAuthenticator:
    """Authenticate agents and workers by token; delegate users to another authenticator."""

    def __init__(
        self,
        api: Api,
        account: str,
        next_authenticator: Authenticator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expect agents to run as the service account `account`, `namespace:name`.

        `api` is a client for reviews alone, so that the scheduler's requests never queue behind
        them.
        """
        self._api = api
        self._user = f"{_ACCOUNT}{account}"
        self._next_authenticator = next_authenticator
        self._reviews = SingleFlight[Actor](
            at_once=_AT_ONCE, ttl_s=_KNOWN_FOR_S, clock=clock, within_s=IDENTIFIED_WITHIN_S
        )

    async def actor(self, request: Request) -> Actor:
        """Return a node's agent, a worker, or the user that the next authenticator finds."""
        token = bearer_token(request) or ""
        process = await self.pod(token)
        return await self._next_authenticator.actor(request) if process is None else process

    async def person(self, name: str) -> Actor:
        """Return a user by name."""
        return await self._next_authenticator.person(name)

    async def pod(self, token: str) -> Actor | None:
        """Return the agent or worker of a token, or None if it belongs to neither.

        Raises:
            Unavailable: the API server does not answer.
        """
        if not self._claims_our_audience(token):
            return None
        digest = sha256(token.encode()).hexdigest()
        try:
            # Refusals are not cached: made-up tokens would evict the agents' entries.
            return await self._reviews.get(digest, partial(self._review, token))
        except _UnknownTokenError:
            return None

    def _claims_our_audience(self, token: str) -> bool:
        """Return True if an unverified token names this service: only such ones are reviewed."""
        audiences, subject = read_claims(token)
        if AUDIENCE in audiences and subject == self._user:
            return True
        return job_manifest.AUDIENCE in audiences and subject.startswith(_ACCOUNT)

    async def _review(self, token: str) -> Actor:
        """Let the API server review a token; return its agent or worker, or raise."""
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
            raise _UnknownTokenError
        if job_manifest.AUDIENCE in audiences and pod and name.startswith(_ACCOUNT):
            namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
            return Actor(f"{namespace}/{pod}", "worker")
        raise _UnknownTokenError


def read_claims(token: str) -> tuple[Collection[str], str]:
    """Return a token's audiences and subject, unverified; empty if it is no JWT."""
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
    audience_names = [each for each in listed if isinstance(each, str)]
    return audience_names, subject if isinstance(subject, str) else ""
