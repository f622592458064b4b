"""Know agents and workers of elastic jobs by the tokens of their pods: the API server says whose.

So no secret is shared: an agent reports about its own node alone (KEP-4193: tokens of pods name
their node; 1.32), and a worker speaks for its own pod. Everybody else is somebody else's business.
Used by the service's composition root over Kubernetes.
"""

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from fastapi import Request

from runai.hub_service.api.auth import Authenticator, bearer_token
from runai.hub_service.api.permissions import Actor
from runai.hub_service.clusters.kubernetes import elastic_pods
from runai.hub_service.clusters.kubernetes.api import Api, ApiError
from runai.hub_service.errors import Unavailable

__all__ = ["AUDIENCE", "NodeTokens"]

AUDIENCE = "runai"
"""What the agents' tokens are for: nobody can use one with the API server itself."""
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT = "system:serviceaccount:"
_NODE = "authentication.kubernetes.io/node-name"
_POD = "authentication.kubernetes.io/pod-name"
_KNOWN_FOR_S = 60.0
_MOST_KNOWN = 10_000


class NodeTokens:
    """Tell agents and workers by their pods' tokens, and ask another for everybody else."""

    def __init__(
        self,
        api: Api,
        account: str,
        others: Authenticator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Agents run as the service account `account`, `namespace:name`."""
        self._api = api
        self._user = f"{_ACCOUNT}{account}"
        self._others = others
        self._clock = clock
        self._known: dict[bytes, tuple[float, Actor | None]] = {}
        """Until when who is believed, by the token's digest; None is somebody else."""

    async def actor(self, request: Request) -> Actor:
        """Return a node's agent, a worker, or whoever else knows."""
        token = bearer_token(request) or ""
        if token.count(".") == 2 and (known := await self.pod(token)) is not None:  # a JWT
            return known
        return await self._others.actor(request)

    async def person(self, name: str) -> Actor:
        """Return a user by name."""
        return await self._others.person(name)

    async def pod(self, token: str) -> Actor | None:
        """Return the agent or the worker whose token it is; None: neither's.

        Raises:
            Unavailable: the API server does not say.
        """
        digest, now = sha256(token.encode()).digest(), self._clock()
        until, known = self._known.get(digest, (0.0, None))
        if until <= now:
            known = await self._ask(token)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[digest] = (now + _KNOWN_FOR_S, known)
        return known

    async def _ask(self, token: str) -> Actor | None:
        review = {"spec": {"token": token, "audiences": [AUDIENCE, elastic_pods.AUDIENCE]}}
        try:
            status = (await self._api.create(_REVIEWS, review)).get("status", {})
        except ApiError as error:
            raise Unavailable(
                f"Kubernetes does not say whose token it is: {error.message}.",
                hint="Try again in a moment.",
            ) from error
        if not status.get("authenticated"):
            return None
        user: Mapping[str, Any] = status.get("user", {})
        name, extra = str(user.get("username", "")), user.get("extra", {})
        node, pod = ((extra.get(field) or [""])[0] for field in (_NODE, _POD))
        audiences = status.get("audiences", ())
        if AUDIENCE in audiences:
            return Actor(node, "agent") if name == self._user and node else None
        if elastic_pods.AUDIENCE in audiences and pod and name.startswith(_ACCOUNT):
            namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
            return Actor(f"{namespace}/{pod}", "worker")
        return None
