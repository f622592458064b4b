"""Mail through a real server: only to the owner.

Mail that leaves this machine is encrypted, and the server's certificate is verified.
"""

from __future__ import annotations

import ssl
from asyncio import Server
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller as MailServer
from aiosmtpd.smtp import AuthResult, LoginPassword

from control_plane.certificates import Authority
from runai.hub_service.controller.notifications import Notification, NotificationSettings
from runai.hub_service.controller.notifications.channels import Mail, Undelivered

LOCAL_HOST = "127.0.0.1"
REMOTE_HOST = "127.0.0.2"
"""A loopback address: mail sent to it is treated as if it left this machine."""
PASSWORD = "correct horse"
PAUSE_NOTIFICATION = Notification(
    1.0, "paused", "vision/exp", "vision", "ana", "vision/exp was paused: why"
)


@dataclass
class Postbox:
    """Messages that a mail server received, if encrypted or not, and the passwords it received."""

    messages: list[tuple[list[str], bytes]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    passwords: list[bytes] = field(default_factory=list)
    refuse: str = ""

    async def handle_RCPT(self, _server, _session, envelope, address, _) -> str:  # noqa: N802
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server, session, envelope) -> str:  # noqa: N802
        self.encrypted.append(session.ssl is not None)
        self.messages.append((envelope.rcpt_tos, envelope.content))
        return "250 OK"

    def authenticate(self, _server, _session, _envelope, _mechanism, data) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.passwords.append(data.password)
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


class FreePortMailServer(MailServer):
    """A mail server on a free port."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def serve_mail(host: str, **options) -> Iterator[tuple[Postbox, str]]:
    box = Postbox()
    options = {"auth_require_tls": False} | options
    server = FreePortMailServer(
        box, host, 0, authenticator=box.authenticate, ready_timeout=60, **options
    )
    server.start()
    try:
        yield box, f"{host}:{server.port}"
    finally:
        server.stop()


def mail(
    server: str,
    *,
    scheme: str = "smtp",
    password: str = PASSWORD,
    address_format: str = "{user}@lab.example",
) -> Mail:
    url = f"{scheme}://gpus:{password.replace(' ', '%20')}@{server}"
    variables = {"SMTP": url, "FROM": "gpus@lab.example", "TO": address_format}
    environment = {f"RUNAI_NOTIFY_{name}": value for name, value in variables.items()}
    settings = NotificationSettings.from_environment(environment).mail
    assert settings is not None
    return Mail(settings)


# -- recipients ----------------------------------------------------------------------------------


@pytest.fixture
def mailbox() -> Iterator[tuple[Postbox, str]]:
    with serve_mail(LOCAL_HOST) as box_and_server:
        yield box_and_server


@pytest.mark.parametrize(
    ("user", "address_format", "address"),
    [
        ("ana", "{user}@lab.example", "ana@lab.example"),
        ("ana@uni.example", "{user}", "ana@uni.example"),
    ],
)
async def test_notification_mail_is_sent_to_the_job_owners_address(
    mailbox, user, address_format, address
):
    box, server = mailbox
    await mail(server, address_format=address_format).send(replace(PAUSE_NOTIFICATION, user=user))

    [(recipients, content)] = box.messages
    assert recipients == [address]
    assert b"Subject: vision/exp: paused" in content
    assert b"vision/exp was paused: why" in content


@pytest.mark.parametrize("user", ["ana\r\nBcc: all@lab.example", "ana,mia", ""])
async def test_user_name_that_makes_no_mail_address_raises_undelivered(mailbox, user):
    box, server = mailbox
    with pytest.raises(Undelivered, match="makes no address"):
        await mail(server).send(replace(PAUSE_NOTIFICATION, user=user))

    assert box.messages == []


@pytest.mark.parametrize(
    ("password", "refuse", "is_retried"),
    [("wrong", "", False), (PASSWORD, "550 who", False), (PASSWORD, "451 later", True)],
)
async def test_refused_mail_error_names_no_password_and_no_recipient(
    mailbox, password, refuse, is_retried
):
    box, server = mailbox
    box.refuse = refuse
    with pytest.raises(Undelivered) as failure:
        await mail(server, password=password).send(PAUSE_NOTIFICATION)

    error_text = f"{failure.value!r} {failure.value.__cause__!r}"
    assert failure.value.worth_again is is_retried
    assert not any(word in error_text for word in (password, "ana", "lab.example"))


# -- encryption ----------------------------------------------------------------------------------


def context_of(authority: Authority, folder: Path) -> ssl.SSLContext:
    authority.server(["mail.lab.example"], [REMOTE_HOST]).write(folder, "mail")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "mail.crt", folder / "mail.key")
    return context


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return a certificate authority that this machine trusts."""
    trusted = Authority()
    (tmp_path / "ca.crt").write_bytes(trusted.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    return trusted


encrypting = pytest.mark.parametrize(
    ("scheme", "option"),
    [("smtp", "tls_context"), ("smtps", "ssl_context")],
    ids=["STARTTLS", "TLS"],
)


@encrypting
async def test_notification_mail_and_smtp_password_are_encrypted(
    authority, tmp_path, scheme, option
):
    context = {option: context_of(authority, tmp_path)}
    with serve_mail(REMOTE_HOST, **context, auth_require_tls=scheme == "smtp") as (box, server):
        await mail(server, scheme=scheme).send(PAUSE_NOTIFICATION)

    assert box.passwords == [PASSWORD.encode()]
    assert len(box.encrypted) == 1


async def test_mail_delivery_sends_no_password_to_an_unencrypted_smtp_server():
    with serve_mail(REMOTE_HOST) as (box, server), pytest.raises(Undelivered):
        await mail(server).send(PAUSE_NOTIFICATION)

    assert (box.passwords, box.encrypted) == ([], [])


@encrypting
async def test_mail_delivery_sends_no_password_to_server_with_untrusted_certificate(
    tmp_path, scheme, option
):
    untrusted_context = {option: context_of(Authority(), tmp_path)}
    with (
        serve_mail(REMOTE_HOST, **untrusted_context) as (box, server),
        pytest.raises(Undelivered, match="SSLCertVerificationError"),
    ):
        await mail(server, scheme=scheme).send(PAUSE_NOTIFICATION)

    assert (box.passwords, box.encrypted) == ([], [])
