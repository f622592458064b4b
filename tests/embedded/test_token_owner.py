"""Token checks while the hub's database fails: valid tokens are not rejected as unknown.

On a real platform of `runai up`; another process holds SQLite's lock on the hub's database.
"""

from __future__ import annotations

import httpx
import pytest

from hub_database import failing
from hub_platform import HubPlatform

pytestmark = [pytest.mark.hub]


def ask(platform: HubPlatform, path: str, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(platform.http.base_url.join(path), headers=headers, timeout=60)


@pytest.mark.parametrize("reads", [False, True], ids=["nothing is written", "nothing is read"])
def test_a_good_token_is_not_called_unknown_while_the_hubs_database_fails(
    platform: HubPlatform, reads: bool
):
    # The hub writes a token's first use to the database at once, later uses twice a minute.
    token = platform.token("bo")

    with failing(platform.data_dir, reads=reads):
        by_hub = ask(platform, "/hub/api/user", token)
        by_service = ask(platform, "/services/runai/api/v1/whoami", token)

    assert by_hub.status_code == 503
    assert (by_service.status_code, by_service.json()["code"]) == (503, "hub_unavailable")
    assert "cannot say now who you are" in by_service.json()["detail"]
    assert float(by_service.headers["Retry-After"]) == 2
    assert ask(platform, "/hub/api/user", token).json()["name"] == "bo"
    assert ask(platform, "/services/runai/api/v1/whoami", token).json()["name"] == "bo"


def test_a_token_that_is_not_known_is_called_so(platform: HubPlatform):
    by_hub = ask(platform, "/hub/api/user", "made-up")
    by_service = ask(platform, "/services/runai/api/v1/whoami", "made-up")

    assert by_hub.status_code == 403
    assert (by_service.status_code, by_service.json()["code"]) == (401, "unauthenticated")
    assert "made-up" not in by_hub.text + by_service.text
