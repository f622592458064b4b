"""Whose a token is, while JupyterHub's database fails: "cannot say now", never "unknown".

JupyterHub writes down when a token was used. Where that fails, as on a full disk, it goes on as if
nobody had logged in (`BaseHandler.prepare` of JupyterHub 5 and 6), and answers 403, as of a token
that it does not know: services and notebook servers then send people away who are logged in.
Added to the hub by `hub`.
"""

from http import HTTPStatus

from jupyterhub.apihandlers.users import SelfAPIHandler
from sqlalchemy.exc import SQLAlchemyError
from tornado import web


class WhoseToken(SelfAPIHandler):
    """JupyterHub's own answer, unless its database has failed."""

    _database_failed = False

    async def get_current_user(self) -> object:
        """Return who asks; remember when that could not be found out."""
        try:
            return await super().get_current_user()
        except SQLAlchemyError:
            self._database_failed = True
            raise  # JupyterHub rolls back

    async def get(self) -> None:
        """Say who asks.

        Raises:
            HTTPError: 503, the database has failed; 403, the token is not known.
        """
        if self._database_failed:
            raise web.HTTPError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The hub's database has failed, so nobody can be identified now.",
            )
        await super().get()
