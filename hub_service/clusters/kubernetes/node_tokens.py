"""Know the agents by the tokens of their pods: the API server says on which node each of them is.

So no secret is shared, and an agent reports about its own node alone (KEP-4193: tokens of pods name
their node; 1.32). Everybody else is somebody else's business. Used by the service's composition
root over Kubernetes.
"""

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from fastapi import Request

from runai.hub_service.api.auth import Authenticator, bearer_token
from runai.hub_service.api.permissions import Actor
from runai.hub_service.clusters.kubernetes.api import Api, ApiError
from runai.hub_service.errors import Unavailable

__all__ = ["AUDIENCE", "NodeTokens"]

AUDIENCE = "runai"
"""What the agents' tokens are for: nobody can use one with the API server itself."""
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_NODE = "authentication.kubernetes.io/node-name"
_KNOWN_FOR_S = 60.0
_MOST_KNOWN = 10_000


class NodeTokens:
    """Tell agents by their pods' tokens, and ask another for everybody else."""

    def __init__(
        self,
        api: Api,
        account: str,
        others: Authenticator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Agents run as the service account `account`, `namespace:name`."""
        self._api = api
        self._user = f"system:serviceaccount:{account}"
        self._others = others
        self._clock = clock
        self._known: dict[bytes, tuple[float, str]] = {}
        """Until when which node is believed, by the token's digest; "" is no agent's."""

    async def actor(self, request: Request) -> Actor:
        """Return a node's agent, or whoever else knows."""
        token = bearer_token(request) or ""
        if token.count(".") == 2 and (node := await self.node(token)):  # a JWT
            return Actor(node, "agent")
        return await self._others.actor(request)

    async def person(self, name: str) -> Actor:
        """Return a user by name."""
        return await self._others.person(name)

    async def node(self, token: str) -> str:
        """Return on which node the agent is whose token it is; "" is no agent's.

        Raises:
            Unavailable: the API server does not say.
        """
        digest, now = sha256(token.encode()).digest(), self._clock()
        until, node = self._known.get(digest, (0.0, ""))
        if until <= now:
            node = await self._ask(token)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[digest] = (now + _KNOWN_FOR_S, node)
        return node

    async def _ask(self, token: str) -> str:
        review = {"spec": {"token": token, "audiences": [AUDIENCE]}}
        try:
            status = (await self._api.create(_REVIEWS, review)).get("status", {})
        except ApiError as error:
            raise Unavailable(
                f"Kubernetes does not say whose token it is: {error.message}.",
                hint="Try again in a moment.",
            ) from error
        user: Mapping[str, Any] = status.get("user", {})
        if not status.get("authenticated") or user.get("username") != self._user:
            return ""
        node: str = (user.get("extra", {}).get(_NODE) or [""])[0]
        return node
