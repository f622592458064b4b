"""A user's home: one folder for each user, the same for sessions and jobs."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.processes.user_account import UnixAccount, home_name, platform_account
from runai.spawner.local import RunaiLocalSpawner

ODD_NAMES = {
    "plus": "user+tag@example.org",
    "accent": "jürgen müller",
    "accent in two characters": unicodedata.normalize("NFD", "jürgen müller"),
    "apostrophe": "o'brien",
    "other script": "山田太郎",
    "capitals": "Ana",
    "domain": "EXAMPLE\\ana",
    "dash first": "-rf",
    "dash last": "ana-",
    "dot first": ".ssh",
    "dot last": "ana.",
    "tilde": "~root",
    "here": ".",
    "above": "..",
    "path": "../bob",
    "slash last": "bob/",
    "root": "/etc",
    "space first": " ana",
    "quoted": "%41na",
    "newline": "ana\n",
    "null": "ana\0",
    "empty": "",
    "64 letters": "a" * 64,
    "long": "山" * 255,
    "long path": "../" * 100,
}
NAMES = st.one_of(
    st.text(max_size=300),
    st.sampled_from([*ODD_NAMES.values()]),
    st.from_regex(r"[a-zA-Z0-9._@+~ %'/-]{0,70}", fullmatch=True),
    st.builds(str.__mul__, st.sampled_from([*ODD_NAMES.values()]), st.integers(1, 70)),
)


@pytest.mark.parametrize(
    ("user", "name"),
    [
        *((plain, plain) for plain in ("a.b_c", "ana@example.org", "007", "a" * 63)),
        ("Ana Müller", "Ana M%C3%BCller"),
        ("user+tag@example.org", "user%2Btag%40example%2Eorg"),
        ("-rf", "%2Drf"),
        ("~root", "%7Eroot"),
        ("..", "%2E%2E"),
    ],
)
def test_home_folder_name_is_the_plain_or_quoted_user_name(user: str, name: str):
    assert home_name(user) == name


@given(NAMES)
def test_home_folder_name_of_any_user_is_a_single_safe_path_component(user: str):
    name = home_name(user)

    assert len(Path("/users", name).parts) == 3
    assert name[0] not in ".-~"
    assert len(name.encode()) <= 200
    assert name.isprintable()


@given(NAMES, NAMES)
def test_two_users_never_share_a_home(first: str, second: str):
    assert (home_name(first) == home_name(second)) == (first == second)
    # Nor does a user with another user's home folder as name.
    assert home_name(home_name(first)) != home_name(first) or home_name(first) == first


def test_long_user_names_with_a_common_beginning_have_different_home_folders():
    homes = {home_name("山" * length) for length in range(256)}

    assert len(homes) == 256


@pytest.mark.parametrize("system_users", [False, True], ids=["platform's account", "Unix account"])
@pytest.mark.parametrize("user", ["ana", ODD_NAMES["path"]], ids=["plain name", "odd name"])
def test_sessions_and_jobs_of_a_user_have_the_same_name_and_home(
    user: str, system_users: bool, tmp_path: Path
):
    account = platform_account(user, tmp_path)
    if system_users:
        account = UnixAccount(user, Path("/home/her"), 54_321, 54_321, groups=(54_321,))
    spawner = RunaiLocalSpawner(
        user=SimpleNamespace(name=user),
        users_directory=str(tmp_path / "users"),
        system_users=system_users,
    )

    if system_users:
        spawner._start_account = account

    session, job = spawner.user_env({}), account.environment()

    for variable in ("HOME", "LOGNAME", "USER"):
        assert session[variable] == job[variable]
