"""Client of the API server that sends and receives plain JSON objects.

kubernetes_asyncio, which KubeSpawner uses too, handles authentication: kubeconfig, the pod's
service account, TLS, expiring tokens. Its typed models are not used: converting 10,000 pods to them
takes seconds.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

from runai.hub_service.wire.errors import Conflict, InvalidRequest, RunaiError, Unavailable

_MAX_DEPTH = 200
"""Maximum nesting depth; the objects that we read reach less than a third of it."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def decoded(content: bytes) -> Any:  # noqa: ANN401  JSON
    """Parse JSON; values nested deeper than 200 levels become null.

    >>> decoded(b'{"a": [1], "b": ' + b"[" * 5000 + b"]" * 5000 + b"}")["a"]
    [1]

    Raises:
        ValueError: the content is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        return json.loads(_shallow(content))


def _shallow(content: bytes) -> bytes:
    """Replace values nested deeper than 200 levels by null."""
    pieces, depth, copied_to = [], 0, 0
    for token in _TOKEN.finditer(content):
        if token[0] in b"[{":
            depth += 1
            if depth == _MAX_DEPTH + 1:
                pieces.append(content[copied_to : token.start()])
        elif token[0] in b"]}":
            if depth == _MAX_DEPTH + 1:
                pieces.append(b"null")
                copied_to = token.end()
            depth -= 1
    # A deep value that never closes is left out; then parsing the result raises ValueError.
    return b"".join(pieces) + (content[copied_to:] if depth <= _MAX_DEPTH else b"")


Object = Mapping[str, Any]
"""A Kubernetes object as JSON."""

ANSWERED_WITHIN_S = 30.0
ARRIVES_WITHIN_S = 4.0
"""Maximum time that closing a client waits for answers to requests in flight."""
TRIES = 5
_PAGE = "500"
"""Objects of one page of a list."""
LONGEST_PAUSE_S = 10.0
PIECE_BYTES = 65_536
LONGEST_LINE_BYTES = 2**21
"""Maximum length of one watch event; etcd limits an object to 1.5 MiB."""
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_CHANNELS = "v5.channel.k8s.io"
_BUDGET = "DisruptionBudget"
"""Cause of a 429 answer that is a disruption budget, not throttling."""
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """Refusal by the API server, or a missing answer (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Store the HTTP status, Kubernetes' reason and its message."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_by_budget(self) -> bool:
        """Return True if a disruption budget (PDB) forbids the eviction."""
        return self.reason == _BUDGET

    @property
    def is_unanswered(self) -> bool:
        """Return True if the outcome of the request is unknown."""
        return self.status == 0 or self.status >= 500

    @property
    def is_for_good(self) -> bool:
        """Return True if retrying the request cannot succeed."""
        return self.status in (400, 403, 404, 422)


class Api:
    """One connection pool to one API server."""

    def __init__(self, client: ApiClient) -> None:
        """Wrap a client that is configured with the server and credentials."""
        self._client = client
        client.user_agent = "jupyter-runai"
        _read_proxy_once(client)
        self._in_flight: set[asyncio.Task[aiohttp.ClientResponse]] = set()

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """Connect by a kubeconfig, or by the pod's service account.

        Without an argument the kubeconfig is $KUBECONFIG or ~/.kube/config, if one exists.
        """
        settings = Configuration()
        if kubeconfig is None and not _has_kubeconfig():
            # Not `load_config`: it warns about the service account, which is how we are installed.
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(kubeconfig, client_configuration=settings)
        return cls(ApiClient(settings))

    def clone(self) -> Self:
        """Return a separate connection pool to the same server, for the running event loop."""
        return type(self)(ApiClient(self._client.configuration))

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for requests in flight, at most 4 s, and close the connections.

        The remaining requests are then cancelled, so that a silent server delays nothing. Reads are
        awaited too: cancelling one while its connection is opened would leak the connection.
        """
        if self._in_flight:
            await asyncio.wait(list(self._in_flight), timeout=ARRIVES_WITHIN_S)
        for request in (remaining := list(self._in_flight)):
            request.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        await self._client.close()

    async def get(self, path: str, **query: str) -> Object:
        """Return an object or a list."""
        return await self._request("GET", path, query=query)

    async def pages(self, path: str, **query: str) -> AsyncGenerator[Object, None]:
        """Yield a whole list, page by page."""
        query["limit"] = _PAGE
        while True:
            page = await self.get(path, **query)
            yield page
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def create(self, path: str, body: Object, *, retry: bool = True) -> Object:
        """Create an object; without `retry`, a throttled request fails at once."""
        return await self._request("POST", path, body, tries=TRIES if retry else 1)

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object; a `resourceVersion` in `body` must still be the current one."""
        return await self._request("PUT", path, body)

    async def patch(self, path: str, body: Object, *, strategic: bool = False) -> Object:
        """Merge the fields of `body` into an object.

        `strategic` merges lists such as conditions by key.
        """
        kind = _STRATEGIC_PATCH if strategic else _MERGE_PATCH
        return await self._request("PATCH", path, body, content_type=kind)

    async def change(self, path: str, steps: Sequence[Object]) -> Object:
        """Apply a JSON Patch: all steps, or none if a test fails."""
        return await self._request("PATCH", path, steps, content_type=_JSON_PATCH)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """Delete an object; `body` are DeleteOptions."""
        return await self._request("DELETE", path, body)

    async def watch(self, path: str, *, seconds: int, **query: str) -> AsyncGenerator[Object, None]:
        """Yield watch events, `{"type": …, "object": …}`, until the server ends it after `seconds`.

        Raises:
            ApiError: the watch is refused, or the connection breaks.
        """
        query |= {"watch": "1", "timeoutSeconds": str(seconds)}
        # Detect a dead connection: the server would have ended the watch before this timeout.
        max_silence_s = seconds + ANSWERED_WITHIN_S
        async with self._answer(path, query, max_silence_s=max_silence_s) as answer:
            async for line in answer.content:
                yield decoded(line)

    async def text(self, path: str, **query: str) -> AsyncGenerator[bytes, None]:
        """Yield a text answer in pieces of at most 64 KiB as they arrive.

        Raises:
            ApiError: the request is refused, or the connection breaks.
        """
        async with self._answer(path, query, max_silence_s=None) as answer:
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                yield piece

    async def channels(self, path: str, query: Sequence[tuple[str, str]]) -> "Channels":
        """Open a WebSocket of numbered channels, such as the streams of `exec` in a pod.

        Raises:
            ApiError: the server refuses, or does not answer.
        """
        headers: dict[str, str] = {}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        address = f"{self._client.configuration.host}{path}?{urlencode(query)}"
        session: aiohttp.ClientSession = self._client.rest_client.pool_manager
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                return Channels(
                    await session.ws_connect(
                        address,
                        headers=headers,
                        protocols=[_CHANNELS],
                        max_msg_size=0,
                        proxy=self._client.rest_client.proxy,
                    )
                )
        except aiohttp.WSServerHandshakeError as refused:
            raise ApiError(refused.status, "Refused", f"{refused.status} {path}") from refused
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            raise _unanswered(path, broken) from broken

    @contextlib.asynccontextmanager
    async def _answer(
        self, path: str, query: Mapping[str, str], *, max_silence_s: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Yield the answer to a GET, to be read as it arrives; then abort it.

        Raises:
            ApiError: the request is refused, the connection breaks, or nothing arrives for
                `max_silence_s`; None: without limit.
        """
        time_limits = aiohttp.ClientTimeout(total=None, sock_read=max_silence_s)
        try:
            answer = await self._send("GET", path, None, query, "application/json", time_limits)
            try:
                if answer.status >= 400:
                    raise _refusal(answer, await answer.read())
                yield answer
            finally:
                _abort(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            raise _unanswered(path, broken) from broken

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | Sequence[Object] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        tries: int = TRIES,
    ) -> Object:
        """Send a request and return the answer; retry it while it is throttled, `tries` in all.

        Raises:
            ApiError: the server refuses it, or does not answer.
        """
        time_limits = aiohttp.ClientTimeout(total=ANSWERED_WITHIN_S)
        while True:
            tries -= 1
            try:
                answer = await self._send(
                    method, path, body, query or {}, content_type, time_limits
                )
                async with answer:
                    content = await answer.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as broken:
                raise _unanswered(path, broken) from broken
            if answer.status < 400:
                found: Object = decoded(content)
                return found
            pause_s = _retry_after_s(answer)
            if answer.status != 429 or not tries or pause_s is None:
                raise _refusal(answer, content)
            await asyncio.sleep(pause_s)

    async def _send(
        self,
        method: str,
        path: str,
        body: Object | Sequence[Object] | None,
        query: Mapping[str, str],
        content_type: str,
        time_limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request and return its answer; send it fully even if the caller is cancelled.

        So no connection is dropped while it is opened.
        """
        sending = asyncio.create_task(
            self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=time_limits,
            )
        )
        self._in_flight.add(sending)
        sending.add_done_callback(self._in_flight.discard)
        try:
            answer: aiohttp.ClientResponse = await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(_drop_unread)
            raise
        return answer


class Channels:
    """Messages of one WebSocket; the first byte of each is the number of its channel."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Wrap an open WebSocket."""
        self._socket = socket

    async def __aenter__(self) -> Self:
        """Return the channels."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the WebSocket."""
        await self._socket.close()

    async def send(self, message: bytes) -> None:
        """Send a message; drop it if the other side has closed the WebSocket."""
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(message)

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Yield messages until the other side closes the WebSocket."""
        async for message in self._socket:
            if message.type == aiohttp.WSMsgType.BINARY and message.data:
                yield message.data


def _read_proxy_once(client: ApiClient) -> None:
    """Read the proxy settings once, and ignore ~/.netrc.

    kubernetes_asyncio's own session reads both for each request, in two threads one after the
    other; and a password in ~/.netrc for the server's host would conflict with our token.
    """
    rest: Any = client.rest_client
    host = urlsplit(str(client.configuration.host))
    if rest.proxy is None and not proxy_bypass(host.netloc):
        rest.proxy = getproxies().get(host.scheme)
    connector = rest.pool_manager.connector
    rest.pool_manager.detach()
    rest.pool_manager = aiohttp.ClientSession(connector=connector, read_bufsize=LONGEST_LINE_BYTES)


def _has_kubeconfig() -> bool:
    return Path(KUBE_CONFIG_DEFAULT_LOCATION).expanduser().exists()


def key_of(found: Object) -> str:
    """Return `namespace/name`, or the name of a cluster-scoped object.

    >>> key_of({"metadata": {"namespace": "lab", "name": "train-0"}})
    'lab/train-0'
    """
    metadata = found["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _drop_unread(sending: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """Abort the answer to a cancelled caller's request."""
    if not sending.cancelled() and sending.exception() is None:
        _abort(sending.result())


def _abort(answer: aiohttp.ClientResponse) -> None:
    """Abort the connection of an answer that is not needed to its end."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def _retry_after_s(answer: aiohttp.ClientResponse) -> float | None:
    """Return the server's Retry-After in seconds; None if absent or above 10 s."""
    try:
        pause_s = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return pause_s if pause_s <= LONGEST_PAUSE_S else None


def _refusal(answer: aiohttp.ClientResponse, content: bytes) -> ApiError:
    """Parse the Status object by which the server refuses a request."""
    try:
        status = decoded(content)
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == _BUDGET:
                return ApiError(answer.status, _BUDGET, str(cause["message"]))
        return ApiError(answer.status, str(status.get("reason", "")), str(status["message"]))
    except (ValueError, KeyError, AttributeError):
        return ApiError(answer.status, "", f"{answer.status} {answer.reason}")


def _unanswered(path: str, broken: Exception) -> ApiError:
    return ApiError(0, "Unanswered", f"{path}: {str(broken) or type(broken).__name__}")


@contextlib.contextmanager
def translate_api_errors() -> Iterator[None]:
    """Translate API server errors into cluster errors."""
    try:
        yield
    except ApiError as error:
        raise translated(error) from error


def translated(error: ApiError) -> RunaiError:
    """Return the cluster error of an API server error."""
    if error.status in (409, 404):
        return Conflict(
            f"Kubernetes refuses it: {error.message}.", hint="Look again.", code="changed_meanwhile"
        )
    if error.status in (400, 403, 422):
        return InvalidRequest(f"Kubernetes refuses it: {error.message}.", hint="")
    return Unavailable(
        f"Kubernetes does not do it now: {error.message}.", hint="Try again in a moment."
    )
