"""Token checks while the hub's database fails: valid tokens are not rejected as unknown.

On a real platform of `runai up`; another process holds SQLite's lock on the hub's database.
"""

from __future__ import annotations

import httpx
import pytest

from hub_platform import HubPlatform

pytestmark = [pytest.mark.hub]


def get_with_token(platform: HubPlatform, path: str, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(platform.http.base_url.join(path), headers=headers, timeout=60)


@pytest.mark.parametrize("reads_fail", [False, True], ids=["writes fail", "reads fail"])
def test_valid_token_gets_503_while_the_hub_database_fails(platform: HubPlatform, reads_fail: bool):
    # The hub writes a token's first use to the database at once, later uses twice a minute.
    token = platform.token("bo")

    with platform.failing_database(reads=reads_fail):
        by_hub = get_with_token(platform, "/hub/api/user", token)
        by_service = get_with_token(platform, "/services/runai/api/v1/whoami", token)

    assert by_hub.status_code == 503
    assert (by_service.status_code, by_service.json()["code"]) == (503, "hub_unavailable")
    assert "cannot say now who you are" in by_service.json()["detail"]
    assert float(by_service.headers["Retry-After"]) == 2
    assert get_with_token(platform, "/hub/api/user", token).json()["name"] == "bo"
    assert get_with_token(platform, "/services/runai/api/v1/whoami", token).json()["name"] == "bo"


def test_unknown_token_is_rejected_and_not_echoed_by_hub_and_service(platform: HubPlatform):
    by_hub = get_with_token(platform, "/hub/api/user", "made-up")
    by_service = get_with_token(platform, "/services/runai/api/v1/whoami", "made-up")

    assert by_hub.status_code == 403
    assert (by_service.status_code, by_service.json()["code"]) == (401, "unauthenticated")
    assert "made-up" not in by_hub.text + by_service.text
