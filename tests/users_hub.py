"""A real JupyterHub that runs the service as in production, for tests of authorization.

Making a token for a user creates the user. The cast is that of tests/service/conftest.py: ana, mia
and ro are members of vision, vic its admin, nel a member of nlp by the group nlp-people, root a hub
admin; members of the group watchers are admins of watched, which is nia's. Named services: tester
(an admin's rights), reader (our service's rights), and one with the same name as the user ana.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hub_platform import (
    ACCESS_SCOPE,
    JUPYTERHUB_RUNS,
    PASSWORD,
    SERVICE_PATH,
    SUBMIT_SCOPE,
    TESTER_TOKEN,
    HubPlatform,
)
from ports import free_port

HUB_TOKEN = "hub-secret"
NODE_TOKEN = "token-of-the-node-of-the-tests"
NODE = socket.gethostname()
READER_TOKEN = "token-with-the-rights-of-the-service"
IMPOSTOR_TOKEN = "token-of-the-service-named-ana"
ADMIN_SCOPE = "custom:runai:admin"

CONFIG = """
import sys
from jupyterhub.services.service import Service
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.proxy_class = "runai-caddy"
c.CaddyProxy.folder = "{data}/proxy"
c.JupyterHub.allow_named_servers = True
c.JupyterHub.db_url = "sqlite:///{data}/jupyterhub.sqlite"
# A locked database is an error at once, not after five seconds.
c.JupyterHub.db_kwargs = {{"connect_args": {{"check_same_thread": False, "timeout": 0.1}}}}
c.JupyterHub.cookie_secret_file = "{data}/cookie_secret"
c.JupyterHub.pid_file = ""
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{data}/{{username}}"
c.Spawner.cmd = ["sleep", "600"]
c.Spawner.http_timeout = 600  # it never answers, and is there all the same
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.Authenticator.admin_users = {{"root"}}
c.JupyterHub.load_groups = {{"nlp-people": {{"users": ["nel"]}}}}
c.JupyterHub.services = [
    {{
        "name": "runai",
        "url": "http://127.0.0.1:{service_port}",
        "command": [sys.executable, "-P", "-m", "runai.hub_service"],
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": ["{open}", "{submit}"],
        "environment": {{
            "RUNAI_DATA_DIR": "{data}",
            "RUNAI_HUB_TOKEN": "{hub_token}",
            "RUNAI_AGENT_TOKEN": "{node_token}",
            "RUNAI_PROJECTS": "{data}/projects.yaml",
            "RUNAI_SIMULATE": "2",
            "RUNAI_USER_CALLS": "0",
        }},
    }},
    {{"name": "tester", "api_token": "{tester}"}},
    {{"name": "reader", "api_token": "{reader}"}},
    {{"name": "ana", "api_token": "{impostor}"}},
]
if "timeout" in Service.class_trait_names():  # a busy machine imports for half a minute
    c.JupyterHub.services[0]["timeout"] = 180
c.JupyterHub.custom_scopes = {{
    "{submit}": {{"description": "Submit."}},
    "{admin}": {{"description": "Set quotas."}},
}}
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", "{open}", "{submit}"]}},
    {{
        "name": "tester",
        "services": ["tester"],
        "scopes": ["admin:users", "admin:servers", "admin:groups", "tokens"],
    }},
    {{"name": "runai-admin", "scopes": ["{admin}"], "users": ["root", "deputy"]}},
    {{"name": "impostor", "services": ["ana"], "scopes": ["{open}", "{submit}"]}},
    {{
        "name": "runai",
        "services": ["runai", "reader"],
        "scopes": ["list:users", "read:users:groups", "read:roles:users", "read:servers",
            "read:groups"],
    }},
]
"""

PROJECTS = """
projects:
  vision: {quota: 2.5, limit: 4, members: [ana, mia, ro], admins: [vic]}
  nlp: {quota: 2.5, groups: [nlp-people]}
  watched: {quota: 1, members: [nia], admin_groups: [watchers]}
"""


@contextmanager
def users_hub(data: Path) -> Iterator[HubPlatform]:
    """Run a hub for the block."""
    port = free_port()
    (data / "projects.yaml").write_text(PROJECTS)
    (data / "config.py").write_text(
        CONFIG.format(
            port=port,
            hub_port=free_port(),
            service_port=free_port(),
            data=data,
            password=PASSWORD,
            tester=TESTER_TOKEN,
            impostor=IMPOSTOR_TOKEN,
            reader=READER_TOKEN,
            open=ACCESS_SCOPE,
            submit=SUBMIT_SCOPE,
            admin=ADMIN_SCOPE,
            hub_token=HUB_TOKEN,
            node_token=NODE_TOKEN,
        )
    )
    command = ["-P", "-m", "jupyterhub", "-f", str(data / "config.py")]
    hub = HubPlatform(data, port, command, cwd=data, ready=JUPYTERHUB_RUNS)
    try:
        hub.start()
        hub.wait_until_served()
        yield hub
    finally:
        hub.stop()


def log_in(browser: httpx.Client, name: str = "ana") -> httpx.Response:
    """Open the page as a browser does: it redirects to the hub's form and back."""
    form = browser.get(SERVICE_PATH)
    assert form.url.path == "/hub/login"
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', form.text)
    assert xsrf is not None
    fields = {"username": name, "password": PASSWORD, "_xsrf": xsrf[1]}
    return browser.post(str(form.url), data=fields)


def login_cookies(browser: httpx.Client) -> dict[str, Any]:
    return {c.name: c for c in browser.cookies.jar if c.path == SERVICE_PATH}
