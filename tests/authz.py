"""The authorization table (tests/authz.yaml) and the answer it promises each role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import yaml

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("authz.yaml").read_text())
ROWS: list[dict[str, Any]] = TABLE["rows"]

ACTORS = {
    "owner": "ana",
    "member": "mia",
    "project admin": "vic",
    "admin": "root",
    "outsider": "nel",
    "hub": "hub",
    "agent": "agent",
    "worker": "worker",
}
READERS = {
    "reader": "member",
    "owner's reader": "owner",
    "project admin's reader": "project admin",
    "admin's reader": "admin",
    "outsider's reader": "outsider",
}
"""Read-only roles, and the role of the same user with an ordinary token."""
ACTORS |= {reader: ACTORS[role] for reader, role in READERS.items()} | {"reader": "ro"}
LIKE = {"admin's notebook": "outsider"}
"""Roles with another role's rights: a hub admin's own notebook is no admin here."""
ACTORS |= {"admin's notebook": "root"}
FORMER = "former member"
"""The owner of a workload in a project that they left, else an outsider; asks for their own."""
FORMERS_WORKLOADS = {"exp1": "past", "lab": "past-lab"}
"""Their workloads in place of the table's."""
USERS = ("owner", "member", "project admin", "admin", "outsider", *READERS, *LIKE)


def token_name(role: str) -> str:
    """Return the name of a role's token on the simulated platform; users may have several."""
    if role in LIKE:
        return f"{ACTORS[role]}-notebook"
    return ACTORS[role] if role not in {*READERS} - {"reader"} else f"{ACTORS[role]}-reads"


def name_of(row: dict[str, Any]) -> str:
    fields = {**row.get("path", {}), **row.get("query", {}), **row.get("body", {})}
    return " ".join([row["route"], *(f"{k}={v}" for k, v in fields.items() if v)])


def allowed_roles(row: dict[str, Any]) -> set[str]:
    roles = {*ACTORS, "service"} if row["who"] == "anybody" else set(row["who"])
    return roles | set(USERS) if "user" in roles else roles


def expected(row: dict[str, Any], role: str) -> str:
    """Return the expected answer to a role's request: let in, sent to the login, or the status."""
    answer = _expected(row, LIKE.get(role, READERS.get(role, role)))
    is_denied = role in READERS and row.get("submits") and answer in {"let in", "400"}
    return "403" if is_denied else answer


def _expected(row: dict[str, Any], role: str) -> str:
    if role == FORMER and "/workloads/{project}/{name}" not in row["route"]:
        role = "outsider"
    if "anybody" in row.get("asked", ()):
        return "400"
    if role == "nobody":
        if row["who"] == "anybody":
            return "let in"
        return "sent to the login" if row.get("page") else "401"
    if role in allowed_roles(row):  # a JupyterHub service is in no row: it has no permission
        return "let in"
    if role in row.get("asked", ()):
        return "400"
    return "404" if role in row.get("hidden", ()) else "403"


def request_arguments(row: dict[str, Any], **places: str) -> dict[str, Any]:
    """Return a row as a request; `places` replace fields of the table."""
    method, path = row["route"].split()
    path_fields = {name: places.get(name, value) for name, value in row.get("path", {}).items()}
    body = row.get("body")
    if body is not None:
        body = {name: places.get(name, value) for name, value in body.items()}
    url = path.format(**path_fields).lstrip("/")
    return {"method": method, "url": url, "json": body, "params": row.get("query")}


def actual_answer(reply: httpx.Response) -> str:
    if reply.status_code == httpx.codes.FOUND:
        at_login = "/login" in reply.headers["location"]
        return "sent to the login" if at_login else "let in"
    # 409: let in, but the workload is not in the state for it.
    refused = reply.status_code in {400, 401, 403, 404, 405, 422}
    return str(reply.status_code) if refused or reply.status_code >= 500 else "let in"
