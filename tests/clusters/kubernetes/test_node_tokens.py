"""Pod tokens are reviewed by the API server, few at once, if their claims name our service."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import Clock
from runai.hub_service.api.auth import single_flight
from runai.hub_service.api.auth.node_tokens import AUDIENCE, NodeTokenAuthenticator, read_claims
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.clusters.kubernetes.client.api import ApiError
from runai.hub_service.wire.errors import Unavailable

AGENT_ACCOUNT = "system:serviceaccount:runai:runai-agent"
AGENT = {"aud": ["runai"], "sub": AGENT_ACCOUNT}
WORKER = {"aud": ["runai-worker"], "sub": "system:serviceaccount:lab:default"}
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def encoded(content: object) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def jwt(claims: object, signature: str = "c2ln") -> str:
    return f"{encoded({'alg': 'RS256'})}.{encoded(claims)}.{signature}"


class UnusedAuthenticator:
    """An authenticator that fails the test when used."""

    async def actor(self, request: Any) -> Any:
        raise AssertionError(request)

    async def person(self, name: str) -> Any:
        raise AssertionError(name)


class Reviews:
    """API server that answers token reviews on demand, and records their tokens."""

    def __init__(self) -> None:
        self.reviewed_tokens: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.status: Mapping[str, Any] = {}
        self.error: ApiError | None = None
        self.clock = Clock()
        self.tokens = NodeTokenAuthenticator(
            self,  # type: ignore[arg-type]
            "runai:runai-agent",
            UnusedAuthenticator(),
            self.clock,
        )

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert path == REVIEWS
        self.reviewed_tokens.append(body["spec"]["token"])
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return {"status": self.status}


REFUSED_TOKENS = {
    "no JSON": "a.b.c",
    "no base64": "a.€.c",
    "four parts": f"{jwt(AGENT)}.x",
    "claims in a list": jwt([AGENT]),
    "deeply nested claims": f"a.{urlsafe_b64encode(b'[' * 5000).decode()}.c",
    "no subject": jwt({"aud": ["runai"]}),
    "no audience": jwt({"sub": AGENT_ACCOUNT}),
    "audiences that are no text": jwt(AGENT | {"aud": [1, None, {}]}),
    "longer name of an audience": jwt(AGENT | {"aud": "runai-other"}),
    "agent of another account": jwt(AGENT | {"sub": "system:serviceaccount:runai:default"}),
    "worker of a user": jwt(WORKER | {"sub": "ana"}),
    "subject that is no text": jwt(WORKER | {"sub": [WORKER["sub"]]}),
    "token of 20 kB": jwt(AGENT | {"jti": "x" * 20_000}),
}


@pytest.mark.parametrize("token", REFUSED_TOKENS.values(), ids=REFUSED_TOKENS.keys())
async def test_pod_token_with_foreign_or_invalid_claims_is_refused_without_a_token_review(token):
    reviews = Reviews()

    assert await reviews.tokens.pod(token) is None
    assert reviews.reviewed_tokens == []


@given(st.text(max_size=40), st.binary(max_size=200), st.text(max_size=40))
def test_forged_pod_token_does_not_name_our_audience(header, payload, signature):
    audiences, _ = read_claims(f"{header}.{urlsafe_b64encode(payload).decode()}.{signature}")

    assert AUDIENCE not in audiences


@pytest.mark.parametrize(
    ("claims", "user", "extra", "actor"),
    [
        (AGENT, AGENT_ACCOUNT, {"node-name": "gpu-0"}, Actor("gpu-0", "agent")),
        (AGENT | {"aud": "runai"}, AGENT_ACCOUNT, {"node-name": "gpu-0"}, Actor("gpu-0", "agent")),
        (AGENT, AGENT_ACCOUNT, {}, None),
        (WORKER, WORKER["sub"], {"pod-name": "exp-0"}, Actor("lab/exp-0", "worker")),
        (WORKER, WORKER["sub"], {}, None),
        # The token's own claims are not trusted; the review's answer counts.
        (AGENT, "system:serviceaccount:runai:default", {"node-name": "gpu-0"}, None),
    ],
    ids=["agent", "audience as text", "no node", "worker", "no pod", "review of another account"],
)
async def test_token_review_returns_the_node_agent_or_user_of_a_pod_token(
    claims, user, extra, actor
):
    reviews = Reviews()
    aud = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    review_extra = {
        f"authentication.kubernetes.io/{name}": [value] for name, value in extra.items()
    }
    named = {"username": user, "extra": review_extra}
    reviews.status = {"authenticated": True, "audiences": aud, "user": named}

    assert await reviews.tokens.pod(jwt(claims)) == actor


async def test_token_reviews_run_at_most_four_at_once():
    reviews = Reviews()
    reviews.answers.clear()
    forged = [jwt(AGENT, f"made-up-{n}") for n in range(50)]
    review_tasks = [asyncio.ensure_future(reviews.tokens.pod(token)) for token in forged]
    for _ in range(100):  # every review that can begin has its turn
        await asyncio.sleep(0)
    assert len(reviews.reviewed_tokens) == 4

    reviews.answers.set()
    assert set(await asyncio.gather(*review_tasks)) == {None}
    assert sorted(reviews.reviewed_tokens) == sorted(forged)


async def test_accepted_token_is_cached_for_a_minute_despite_many_refusals(monkeypatch):
    monkeypatch.setattr(single_flight, "MAX_CACHED", 10)
    reviews = Reviews()
    user = {
        "username": AGENT_ACCOUNT,
        "extra": {"authentication.kubernetes.io/node-name": ["gpu-0"]},
    }
    agent_token, agent = jwt(AGENT), Actor("gpu-0", "agent")
    reviews.status = {"authenticated": True, "audiences": ["runai"], "user": user}
    assert await reviews.tokens.pod(agent_token) == agent
    reviews.status = {"authenticated": False}
    for n in range(20):
        assert await reviews.tokens.pod(jwt(AGENT, f"made-up-{n}")) is None

    assert await reviews.tokens.pod(agent_token) == agent
    assert reviews.reviewed_tokens.count(agent_token) == 1
    reviews.clock.at += 60  # seconds
    assert await reviews.tokens.pod(agent_token) is None


async def test_token_review_without_an_api_answer_raises_unavailable():
    reviews = Reviews()
    reviews.error = ApiError(0, "Unanswered", "no route")

    with pytest.raises(Unavailable, match="does not say whose token it is: no route"):
        await reviews.tokens.pod(jwt(AGENT))
