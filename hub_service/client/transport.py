"""HTTP transports, blocking and asynchronous: tokens, time-outs, retries, connection errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx

from runai.hub_service.client.calls import ANSWER_WITHIN_S, SILENCE_S, Call, Retries, Stream
from runai.hub_service.client.connection import ConnectionSource, checked_token
from runai.hub_service.client.tls_trust import untrusted, verification
from runai.hub_service.processes.per_process import PerProcess
from runai.hub_service.wire import problems
from runai.hub_service.wire.errors import InvalidRequest, Unauthenticated, Unavailable
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.problems import error_from_reply
from runai.hub_service.wire.validation import MAX_QUOTED_CHARACTERS

T = TypeVar("T")

_JSON = {"Content-Type": "application/json"}
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def address_parts(
    url: str,
    what: str = "a GPU service",
    example: str = "https://hub.example.org/services/runai/",
) -> SplitResult:
    """Parse an address of the service, or of another server.

    Raises:
        InvalidRequest: it is no HTTP address.
    """
    with suppress(ValueError, httpx.InvalidURL):  # brackets, a port, a label that is too long
        parts = urlsplit(url)
        httpx.URL(url)
        host = (parts.hostname or "").encode("idna")
        if parts.scheme in {"http", "https"} and host and parts.port != 0:
            return parts
    escaped = printable(url, MAX_QUOTED_CHARACTERS)
    raise InvalidRequest(f"'{escaped}' is no address of {what}.", hint=f"It looks like {example}.")


class _Endpoint:
    """Common part of both transports: address, patience and error handling."""

    def __init__(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None,
        source: ConnectionSource | None,
    ) -> None:
        parts = address_parts(url)
        self.url = url.rstrip("/") + "/"
        self.patience_s = patience_s
        self._token, self._source = token, source
        # Without user:password@, for error messages.
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": _bearer(token),
            # A proxy of the environment cannot reach this machine's own addresses.
            "trust_env": parts.hostname not in {"127.0.0.1", "localhost", "::1"},
            "verify": verification(url, ca),
        }

    def renew_token(self, refused: Unauthenticated) -> dict[str, str]:
        """Replace a refused token by a newer one for this address, and return its header.

        Raises:
            Unauthenticated: there is no other; in a session its hint says what helps there.
        """
        source = self._source
        token = source and source.newer_token(self.url, self._token)
        if not token:
            if source is not None and source.is_session:
                refused.hint = "Stop this server and start it again: it then has a new token."
            raise refused
        self._token = token
        self.settings["headers"] = _bearer(token)
        return _bearer(token)

    def request(self, call: Call[T]) -> dict[str, Any]:
        """Return the arguments of httpx for a call."""
        content = call.content()
        request_id = problems.current.get() or problems.new_id()
        headers = {**call.headers, problems.HEADER: request_id}
        if content is not None:
            headers |= _JSON
        return {
            "method": call.method,
            "url": call.path,
            "params": call.params,
            "content": content,
            "headers": headers,
            "timeout": call.timeout_s,
        }

    def stream(self, stream: Stream[T]) -> dict[str, Any]:
        """Return the arguments of httpx for a stream."""
        timeout = httpx.Timeout(ANSWER_WITHIN_S, read=SILENCE_S)
        options = {"url": stream.path, "params": stream.params, "timeout": timeout}
        if stream.body is None:
            return {"method": "GET", **options}
        content = stream.body.model_dump_json().encode()
        return {"method": "POST", "content": content, "headers": _JSON, **options}

    def retry_delay(
        self, failure: Exception, retries: Retries, *, if_refused: bool, if_broken: bool
    ) -> float:
        """Return the seconds to wait before a retry.

        `if_refused` allows one after a refusal by the service, and `if_broken` one after a broken
        connection: the request may have been carried out.

        Raises:
            Unavailable: this failure allows no retry, patience has ended, or the certificate is
                not trusted.
        """
        if isinstance(failure, Unavailable):
            if not if_refused:
                raise failure
            return retries.delay(failure)
        if refused := untrusted(self.url, failure):
            raise refused from failure
        failure_text = (
            "did not answer in time" if isinstance(failure, httpx.TimeoutException) else "is away"
        )
        unavailable = Unavailable(
            f"The GPU service at {self._origin} {failure_text}.",
            hint="Try again in a few seconds; `runai doctor` says more.",
            code="unreachable",
            retry_after=0.0,
        )
        if not (if_broken or isinstance(failure, _NOT_SENT)):
            raise unavailable from failure
        return retries.delay(unavailable)

    def call_retry_delay(self, call: Call[T], failure: Exception, retries: Retries) -> float:
        """Return the seconds to wait before a call is retried, as `retry_delay` does."""
        repeats = call.repeatable
        return self.retry_delay(failure, retries, if_refused=repeats, if_broken=repeats)

    def stream_retry_delay(self, stream: Stream[T], failure: Exception, retries: Retries) -> float:
        """Return the seconds to wait before a stream reconnects, as `retry_delay` does."""
        return self.retry_delay(
            failure, retries, if_refused=stream.body is None, if_broken=stream.restartable
        )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {checked_token(token)}"} if token else {}


_FAILURES = (httpx.TransportError, Unavailable)


def _raise_for_error(response: httpx.Response) -> None:
    if not response.is_success:
        raise error_from_reply(
            response.status_code, response.content, response.headers.get("Retry-After")
        )


class Transport:
    """Blocking transport; thread-safe. A forked child has connections of its own."""

    def __init__(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None = None,
        source: ConnectionSource | None = None,
    ) -> None:
        self._endpoint = _Endpoint(url, token, patience_s, ca, source)
        self.url = self._endpoint.url
        self._http = PerProcess(lambda: httpx.Client(**self._endpoint.settings))

    def close(self) -> None:
        """Close this process's connections."""
        if (http := self._http.existing()) is not None:
            http.close()

    def send(self, call: Call[T]) -> T:
        """Send a call until it is answered or patience ends; return its reply."""
        retries = Retries(self._endpoint.patience_s)
        request = self._endpoint.request(call)
        while True:
            try:
                response = self._http.get().request(**request)
                _raise_for_error(response)
                return call.read(response.content)
            except Unauthenticated as refused:
                self._http.get().headers.update(self._endpoint.renew_token(refused))
            except _FAILURES as failure:
                time.sleep(self._endpoint.call_retry_delay(call, failure, retries))

    def receive(self, stream: Stream[T]) -> Iterator[T]:
        """Yield a stream's items; reconnect a restartable stream after a broken connection."""
        retries = Retries(self._endpoint.patience_s)
        while True:
            decoder = stream.decoder()
            try:
                with self._http.get().stream(**self._endpoint.stream(stream)) as response:
                    if not response.is_success:
                        response.read()
                    _raise_for_error(response)
                    for chunk in response.iter_bytes():
                        for item in decoder.feed(chunk):
                            retries.start_over()
                            yield item
                if not stream.restartable:
                    return
                raise Unavailable("The GPU service ended the stream.", retry_after=0.0)
            except Unauthenticated as refused:
                self._http.get().headers.update(self._endpoint.renew_token(refused))
            except _FAILURES as failure:
                time.sleep(self._endpoint.stream_retry_delay(stream, failure, retries))


class AsyncTransport:
    """Transport for asyncio; cancelling a call closes its connection.

    A forked child has connections of its own.
    """

    def __init__(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None = None,
        source: ConnectionSource | None = None,
    ) -> None:
        self._endpoint = _Endpoint(url, token, patience_s, ca, source)
        self.url = self._endpoint.url
        self._http = PerProcess(lambda: httpx.AsyncClient(**self._endpoint.settings))

    async def close(self) -> None:
        """Close this process's connections."""
        if (http := self._http.existing()) is not None:
            await http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Send a call until it is answered or patience ends; return its reply."""
        retries = Retries(self._endpoint.patience_s)
        request = self._endpoint.request(call)
        while True:
            try:
                response = await self._http.get().request(**request)
                _raise_for_error(response)
                return call.read(response.content)
            except Unauthenticated as refused:
                self._http.get().headers.update(self._endpoint.renew_token(refused))
            except _FAILURES as failure:
                await asyncio.sleep(self._endpoint.call_retry_delay(call, failure, retries))

    async def receive(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Yield a stream's items; reconnect a restartable stream after a broken connection."""
        retries = Retries(self._endpoint.patience_s)
        while True:
            decoder = stream.decoder()
            try:
                async with self._http.get().stream(**self._endpoint.stream(stream)) as response:
                    if not response.is_success:
                        await response.aread()
                    _raise_for_error(response)
                    async for chunk in response.aiter_bytes():
                        for item in decoder.feed(chunk):
                            retries.start_over()
                            yield item
                if not stream.restartable:
                    return
                raise Unavailable("The GPU service ended the stream.", retry_after=0.0)
            except Unauthenticated as refused:
                self._http.get().headers.update(self._endpoint.renew_token(refused))
            except _FAILURES as failure:
                await asyncio.sleep(self._endpoint.stream_retry_delay(stream, failure, retries))
