"""Stand-in for JupyterHub: the three routes that the service uses, for users with 500 servers.

    python benchmarks/crowd/hub.py PORT USERS

User `user-007` has the token `token-of-user-007`, two or three servers, and no group. A real hub
would need minutes to start 500 servers, and its load is not part of the measurement.
"""

import sys

from aiohttp import web

SCOPES = ["access:services!service=runai", "custom:runai:submit"]
SERVERS = ("", "second", "third")


def name_of(number: int) -> str:
    """Return a user's name."""
    return f"user-{number:03}"


def token_of(name: str) -> str:
    """Return a user's token."""
    return f"token-of-{name}"


def servers_of(number: int) -> tuple[str, ...]:
    """Return the servers of a user: two and three by turns, 500 of 200 users."""
    return SERVERS[: 2 + number % 2]


def application(users: int) -> web.Application:
    """Return the application with the routes for a token's owner, a user and the servers."""
    people = {
        name_of(n): {
            "kind": "user",
            "name": name_of(n),
            "admin": False,
            "groups": [],
            "servers": {server: {"ready": True} for server in servers_of(n)},
        }
        for n in range(users)
    }
    tokens = {token_of(name): name for name in people}

    async def token_owner(request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").partition(" ")[2]
        if token not in tokens:
            return web.json_response({"status": 403}, status=403)
        return web.json_response(people[tokens[token]] | {"scopes": SCOPES})

    async def user_by_name(request: web.Request) -> web.Response:
        found = people.get(request.match_info["name"])
        return web.json_response(found or {}, status=200 if found else 404)

    async def page_of_users(request: web.Request) -> web.Response:
        first, many = (int(request.query[word]) for word in ("offset", "limit"))
        return web.json_response(list(people.values())[first : first + many])

    app = web.Application()
    app.add_routes(
        [
            web.get("/hub/api/user", token_owner),
            web.get("/hub/api/users/{name}", user_by_name),
            web.get("/hub/api/users", page_of_users),
        ]
    )
    return app


if __name__ == "__main__":
    web.run_app(application(int(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), print=None)
