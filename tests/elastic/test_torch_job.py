"""The job as scripts use it: its errors, its saved state and its warnings."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

SAMPLES, GLOBAL_BATCH = 23, 10


@pytest.fixture
def make_job():
    """Return a function that makes a job, its loader and its model."""
    import torch
    from torch import nn

    from runai.elastic import torch as elastic

    def make_job(model=None, *, lr=0.1, **options):
        model = model or nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        sizes = {"global_batch": GLOBAL_BATCH, "gpu_batch": 4}
        job = elastic.Job(model, optimizer, scheduler=scheduler, **(sizes | options))
        x = torch.linspace(-1, 1, 2 * SAMPLES).reshape(SAMPLES, 2)
        loader = elastic.DataLoader(torch.utils.data.TensorDataset(x), job=job)
        return job, loader, optimizer

    return make_job


def train(job, loader, epochs):
    boundaries = []
    for _ in job.epochs(epochs):
        for (x,) in loader:
            job.backward(job.model(x).square().mean())
            boundaries.append(job.step())
    return boundaries


def test_torch_job_position_and_schedule_count_updates_not_micro_batches(make_job):
    job, loader, optimizer = make_job()
    positions = []
    job.after_update.append(lambda job: positions.append((job.update, job.epoch)))
    boundaries = train(job, loader, 2)

    # An epoch of 23 samples: twice 10 in three micro-batches, and 3 in one.
    assert boundaries == [False, False, True, False, False, True, True] * 2
    assert positions == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2)]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**6)


def test_torch_job_state_loads_with_weights_only_into_a_plain_optimizer(make_job, tmp_path):
    import torch

    job, loader, _ = make_job()
    train(job, loader, 1)
    torch.save(job.state_dict(), tmp_path / "state")
    saved = torch.load(tmp_path / "state", weights_only=True)
    plain = torch.nn.Linear(2, 1)
    plain.load_state_dict(saved["model"])
    torch.optim.AdamW(plain.parameters()).load_state_dict(saved["optimizer"])

    assert torch.equal(plain.weight, job.module.weight)
    assert saved["job"] == {
        "global_batch": GLOBAL_BATCH,
        "gpu_batch": 4,
        "seed": 0,
        "virtual_workers": None,
        "trainable": [True, True],
        "groups": [[0, 1]],
        "epoch": 1,
        "samples": 0,
        "update": 3,
    }


def test_loaded_torch_job_state_is_not_modified_by_training(make_job):
    import copy

    import torch

    job, loader, _ = make_job()
    train(job, loader, 1)
    saved = copy.deepcopy(job.state_dict())
    original = copy.deepcopy(saved)
    other, loader, _ = make_job(seed=9)
    other.load_state_dict(saved)
    train(other, loader, 3)

    assert other.seed == 0
    for name, value in original["optimizer"]["state"][0].items():
        assert torch.equal(saved["optimizer"]["state"][0][name], value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"global_batch": 12}, "the global batch 10, this one has 12", id="batch-size"),
        pytest.param({"bitwise": True}, "virtual workers None, this one has 8", id="bitwise-mode"),
    ],
)
def test_torch_job_state_of_different_settings_is_loaded_only_with_force(make_job, options, error):
    import torch

    first_job, *_ = make_job()
    saved = first_job.state_dict()
    try:
        job, *_ = make_job(**options)

        with pytest.raises(ValueError, match=error):
            job.load_state_dict(saved)
        job.load_state_dict(saved, force=True)
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize(
    ("trainable", "warning"),
    [
        pytest.param(True, "`weight` and 1 more: trainable, as where", id="thawed"),
        pytest.param(False, "`weight` and 1 more: frozen, as where", id="frozen"),
    ],
)
def test_loaded_torch_job_state_freezes_or_thaws_parameters_with_a_warning(
    make_job, trainable, warning
):
    job, *_ = make_job()
    job.module.requires_grad_(trainable)
    other, *_ = make_job()
    other.module.requires_grad_(not trainable)

    with pytest.warns(UserWarning, match=warning):
        other.load_state_dict(job.state_dict())

    assert [p.requires_grad for p in other.module.parameters()] == [trainable] * 2


def test_optimizer_with_parameters_outside_the_model_is_refused():
    import torch

    from runai.elastic import torch as elastic

    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)

    with pytest.raises(ValueError, match=r"Group 0 .* of shape \(1, 2\) that is not the model's"):
        elastic.Job(model, optimizer, global_batch=4, gpu_batch=4)


def test_torch_job_refuses_to_load_a_state_that_contains_no_job(make_job):
    job, *_ = make_job()

    with pytest.raises(ValueError, match=r"no job's state: it has \['weights'\], but no `job`"):
        job.load_state_dict({"weights": 1})


def test_torch_training_is_unchanged_by_a_recovered_failure(make_job):
    job, loader, _ = make_job()
    undisturbed, undisturbed_loader, _ = make_job(model=None)
    undisturbed.module.load_state_dict(job.module.state_dict())
    failures = []

    def recover(error):
        failures.append(str(error))
        return True

    job.on_failure, failures_to_inject = recover, iter([False, False, False, False, True])
    for _ in job.epochs(2):
        for (x,) in loader:
            loss = job.model(x).square().mean()
            if next(failures_to_inject, False):  # in the second update
                loss.backward()  # so that the job's own backward pass finds its graph freed
            job.backward(loss)
            job.step()
    train(undisturbed, undisturbed_loader, 2)

    assert len(failures) == 1
    assert job.position == undisturbed.position
    assert job.module.weight.tolist() == undisturbed.module.weight.tolist()


def test_torch_job_drops_the_gradients_of_an_abandoned_update(make_job):
    job, loader, _ = make_job()
    undisturbed, undisturbed_loader, _ = make_job()
    undisturbed.module.load_state_dict(job.module.state_dict())
    for (x,) in loader:
        job.backward(job.model(x).square().mean())
        break
    train(job, loader, 1)
    train(undisturbed, undisturbed_loader, 1)

    assert job.module.weight.tolist() == undisturbed.module.weight.tolist()


def test_torch_job_error_names_the_omitted_call(make_job):
    job, loader, _ = make_job()
    loss = job.model(job.module.weight.detach()).sum()
    with pytest.raises(RuntimeError, match="backward without a batch"):
        job.backward(loss)
    with pytest.raises(RuntimeError, match=r"step before job\.backward"):
        job.step()
    with pytest.raises(RuntimeError, match="Epoch 0 went by without an update"):
        list(job.epochs(1))
    with pytest.raises(RuntimeError, match="A batch went by without"):
        list(loader)


def test_learning_rate_schedule_that_does_not_count_updates_is_refused():
    import torch

    from runai.elastic import torch as elastic

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    with pytest.raises(TypeError, match="after each epoch"):
        elastic.Job(model, optimizer, scheduler=scheduler, global_batch=4, gpu_batch=4)  # type: ignore[arg-type]


def test_torch_job_with_batch_norm_warns_once(make_job, monkeypatch):
    from torch import nn

    from runai.elastic.torch import statistics

    monkeypatch.setattr(statistics, "_warned", False)
    with pytest.warns(UserWarning, match="depend on the plan"):
        make_job(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    make_job(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))


def test_torch_job_with_more_ranks_than_batch_samples_warns(make_job):
    job, *_ = make_job()

    with pytest.warns(UserWarning, match="11 ranks share a global batch of 10: 1 of them"):
        job._publish(0, 11)


def test_single_process_feeds_all_devices_of_data_parallel(make_job):
    import torch

    class FourDevices(torch.nn.DataParallel):
        """Fake of four devices, which this machine lacks: the batches do not depend on that."""

        def __init__(self, module):
            super().__init__(module)
            self.device_ids = [0, 1, 2, 3]

    job, loader, _ = make_job(FourDevices(torch.nn.Linear(2, 1)), gpu_batch=2)

    assert job.plan.micro_batches == ((5, 5),)  # at most 4 devices * 2 samples
    (batch,) = next(iter(loader))
    assert len(batch) == 5
