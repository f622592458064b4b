"""Groups that lose a rank: ranks that go on do not keep the rest waiting."""

from __future__ import annotations

import pytest

from ranks import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def test_surviving_torch_rank_reports_a_lost_rank_to_the_rank_that_waits(tmp_path):
    from elastic_losses import lose_rank_0

    messages = run_ranks(lose_rank_0, 3, tmp_path / "store", str(tmp_path / "seen"))

    assert "closed by peer" in messages[2]  # rank 2 waits for rank 1 only


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param("[/gloo/transport/tcp/pair.cc:1] Connection closed by peer", True, id="gloo"),
        pytest.param("Application timeout caused pair closure", True, id="gloo-without-a-path"),
        pytest.param("NCCL error: remote process exited", True, id="nccl"),
        pytest.param("mat1 and mat2 shapes cannot be multiplied", False, id="script-error"),
    ],
)
def test_lost_rank_is_recognized_by_the_error_message(message, expected):
    from runai.elastic.torch.group import is_peer_loss

    assert is_peer_loss(RuntimeError(message)) == expected
