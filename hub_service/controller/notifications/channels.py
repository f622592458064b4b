"""Notification channels: a webhook, and e-mail.

Error texts contain no address, password or URL, because all of them may be secret.
"""

import asyncio
import hashlib
import hmac
import json
import smtplib
import ssl
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Protocol

import httpx

from runai.hub_service.controller.notifications.events import Notification
from runai.hub_service.controller.notifications.settings import MailSettings, WebhookSettings

WITHIN_S = 20.0
SIGNATURE_HEADER = "X-Runai-Signature"


class Undelivered(Exception):
    """Failed delivery; `worth_again` is True if a retry may succeed."""

    def __init__(self, why: str, *, worth_again: bool) -> None:
        super().__init__(why)
        self.worth_again = worth_again


class Channel(Protocol):
    """Transport of notifications."""

    name: str

    async def send(self, notification: Notification) -> None:
        """Send one notification.

        Raises:
            Undelivered: the delivery failed.
        """


class Webhook:
    """JSON posts of notifications, signed if a secret is configured."""

    name = "the webhook"

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings

    async def send(self, notification: Notification) -> None:
        """Post a notification; do not follow redirects, since an admin chose the address."""
        body = json.dumps(
            {
                "at": datetime.fromtimestamp(notification.at, UTC).isoformat(),
                "kind": notification.kind,
                "workload": notification.workload,
                "project": notification.project,
                "user": notification.user,
                "text": notification.text,
            }
        ).encode()
        headers = {"Content-Type": "application/json"}
        if self._settings.secret:
            digest = hmac.new(self._settings.secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE_HEADER] = f"sha256={digest}"
        try:
            async with httpx.AsyncClient(timeout=WITHIN_S) as http:
                reply = await http.post(self._settings.url, content=body, headers=headers)
        # The last three: an address of a proxy that httpx cannot use, such as socks5://….
        except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:
            raise Undelivered(type(error).__name__, worth_again=True) from None
        if not reply.is_success:
            is_temporary = (
                reply.is_server_error or reply.status_code == httpx.codes.TOO_MANY_REQUESTS
            )
            raise Undelivered(f"it answered {reply.status_code}", worth_again=is_temporary)


class Mail:
    """E-mails to the owners of workloads."""

    name = "the mail server"

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings

    async def send(self, notification: Notification) -> None:
        """Send a notification, if the user name gives an address."""
        message = self._message(notification)
        try:
            await asyncio.to_thread(self._post, message)
        except smtplib.SMTPResponseException as refused:
            is_temporary = 400 <= refused.smtp_code < 500
            raise Undelivered(
                f"it answered {refused.smtp_code}", worth_again=is_temporary
            ) from None
        except smtplib.SMTPRecipientsRefused as refused:
            # Servers with greylisting first reject unknown senders with a temporary error.
            is_temporary = all(400 <= code < 500 for code, _ in refused.recipients.values())
            raise Undelivered("it does not take the recipient", worth_again=is_temporary) from None
        except (smtplib.SMTPException, OSError) as error:
            raise Undelivered(type(error).__name__, worth_again=True) from None

    def _message(self, notification: Notification) -> EmailMessage:
        address = self._settings.address_of(notification.user)
        if not address:
            raise Undelivered("a user's name makes no address", worth_again=False)
        message = EmailMessage()
        message["From"] = self._settings.sender
        message["To"] = address
        message["Subject"] = f"{notification.workload}: {notification.kind}"
        message["Date"] = format_datetime(datetime.fromtimestamp(notification.at, UTC))
        message["Message-ID"] = make_msgid(domain="runai.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(f"{notification.text}\n")
        return message

    def _post(self, message: EmailMessage) -> None:
        settings = self._settings
        context = ssl.create_default_context()
        if settings.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=WITHIN_S, context=context
            )
        else:
            server = smtplib.SMTP(settings.host, settings.port, timeout=WITHIN_S)
        with server:
            if settings.security == "starttls":
                server.starttls(context=context)
            if settings.user:
                server.login(settings.user, settings.password)
            server.send_message(message)
