"""Mail through a real server with a certificate: encrypted and checked, or not at all."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller as MailServer
from aiosmtpd.smtp import AuthResult, LoginPassword

from control_plane.certificates import Authority
from runai.hub_service.notifications import Notification, NotificationSettings
from runai.hub_service.notifications.channels import Mail, Undelivered

NOT_LOCAL = "127.0.0.2"
"""An address of this machine at which mail is treated as if it left it."""
PASSWORD = "correct horse"
PAUSED = Notification(1.0, "paused", "vision/exp", "vision", "ana", "vision/exp was paused: why")


@dataclass
class Postbox:
    """What came to a mail server: whether encrypted, and the passwords that it was shown."""

    encrypted: list[bool] = field(default_factory=list)
    shown: list[bytes] = field(default_factory=list)

    async def handle_DATA(self, _server, session, _envelope) -> str:  # noqa: N802
        self.encrypted.append(session.ssl is not None)
        return "250 OK"

    def knows(self, _server, _session, _envelope, _mechanism, data) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.shown.append(data.password)
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return an authority that this machine trusts."""
    made = Authority()
    (tmp_path / "ca.crt").write_bytes(made.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    return made


def context_of(authority: Authority, folder: Path) -> ssl.SSLContext:
    authority.server(["mail.lab.example"], [NOT_LOCAL]).write(folder, "mail")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "mail.crt", folder / "mail.key")
    return context


class AnyPort(MailServer):
    """A mail server on whatever port is free."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # a Server
        super()._trigger_server()


@contextmanager
def serving(**options) -> Iterator[tuple[Postbox, str]]:
    box = Postbox()
    server = AnyPort(box, NOT_LOCAL, 0, authenticator=box.knows, ready_timeout=60, **options)
    server.start()
    try:
        yield box, f"{NOT_LOCAL}:{server.port}"
    finally:
        server.stop()


async def send(scheme: str, server: str) -> None:
    url = f"{scheme}://gpus:{PASSWORD.replace(' ', '%20')}@{server}"
    given = {"SMTP": url, "FROM": "gpus@lab.example", "TO": "{user}@lab.example"}
    environment = {f"RUNAI_NOTIFY_{name}": value for name, value in given.items()}
    mail = NotificationSettings.from_environment(environment).mail
    assert mail is not None
    await Mail(mail).send(PAUSED)


@pytest.mark.parametrize(
    ("scheme", "option"),
    [("smtp", "tls_context"), ("smtps", "ssl_context")],
    ids=["STARTTLS", "TLS"],
)
async def test_mail_and_password_are_encrypted(authority, tmp_path, scheme, option):
    with serving(
        **{option: context_of(authority, tmp_path)}, auth_require_tls=option == "tls_context"
    ) as (box, server):
        await send(scheme, server)

    assert box.shown == [PASSWORD.encode()]
    assert len(box.encrypted) == 1


async def test_a_server_that_does_not_encrypt_is_shown_no_password():
    with serving(auth_require_tls=False) as (box, server), pytest.raises(Undelivered):
        await send("smtp", server)

    assert (box.shown, box.encrypted) == ([], [])


@pytest.mark.parametrize(
    ("scheme", "option"),
    [("smtp", "tls_context"), ("smtps", "ssl_context")],
    ids=["STARTTLS", "TLS"],
)
async def test_a_server_with_a_certificate_of_nobody_known_is_shown_no_password(
    tmp_path, scheme, option
):
    stranger = context_of(Authority(), tmp_path)
    with (
        serving(**{option: stranger}, auth_require_tls=False) as (box, server),
        pytest.raises(Undelivered, match="SSLCertVerificationError"),
    ):
        await send(scheme, server)

    assert (box.shown, box.encrypted) == ([], [])
