"""`runai.ga.torch.optim`: an update over several micro-batches is the whole batch's (I11)."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
optim = pytest.importorskip("runai.ga.torch.optim")

EXACT = {"rtol": 0, "atol": 1e-12}  # float64 throughout
STEPS = 4  # micro-batches of an update

OPTIMIZERS = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "SGD", "Rprop", "RMSprop"]
NEWER_OPTIMIZERS = ["NAdam", "RAdam", "Adafactor", "Muon"]


def linear_model():
    torch.manual_seed(3)
    return torch.nn.Linear(5, 2, dtype=torch.float64, bias=False)


def make_batches(updates=3, steps=STEPS, size=6):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(updates, steps, size, 5, generator=generator, dtype=torch.float64)
    return x, x.sum(-1, keepdim=True).sin().expand(*x.shape[:-1], 2)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def train(model, optimizer, x, y, *, before_step=None, after_step=None):
    """Train like a script without accumulation: one step per micro-batch."""
    for xs, ys in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True):
        optimizer.zero_grad()
        loss_of(model, xs, ys).backward()
        if before_step is not None:
            before_step(model)
        optimizer.step()
        if after_step is not None:
            after_step()
    return model.weight.detach().clone()


def train_on_whole_batches(model, optimizer, x, y, **calls):
    """Train with the whole batch of each update."""
    return train(model, optimizer, x.flatten(1, 2)[:, None], y.flatten(1, 2)[:, None], **calls)


def train_on_whole_and_micro_batches(make, **calls):
    """Return the weights after three updates, with whole batches and with micro-batches."""
    x, y = make_batches()
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, make(model.parameters()), x, y, **calls)
    optimizer = optim.Optimizer(make(other.parameters()), STEPS, "mean")
    return expected, train(other, optimizer, x, y, **calls)


@pytest.mark.parametrize("name", OPTIMIZERS + NEWER_OPTIMIZERS)
def test_accumulating_optimizers_equal_the_whole_batch_update(name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this PyTorch has no {name}")
    x, y = make_batches()
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(
        model, getattr(torch.optim, name)(model.parameters(), lr=0.05), x, y
    )
    optimizer = getattr(optim, name)(STEPS, other.parameters(), lr=0.05)

    assert isinstance(optimizer, getattr(torch.optim, name))
    assert (optimizer.runai.steps, optimizer.defaults["lr"]) == (STEPS, 0.05)
    torch.testing.assert_close(train(other, optimizer, x, y), expected, **EXACT)


def test_sparse_gradients_are_accumulated():
    def step(optimizer_of, parts):
        embedding = torch.nn.Embedding(6, 2, sparse=True)
        torch.nn.init.ones_(embedding.weight)
        optimizer = optimizer_of(embedding.parameters())
        for part in parts:
            optimizer.zero_grad()
            (embedding(part) ** 3).sum().div(len(part)).backward()
            optimizer.step()
        return embedding.weight.detach()

    words = torch.tensor([[0, 2], [2, 5]])
    expected = step(lambda p: torch.optim.SparseAdam(list(p)), [words.flatten()])
    weights = step(lambda p: optim.SparseAdam(2, list(p)), words)

    torch.testing.assert_close(weights, expected)


def test_sum_reduction_adds_the_micro_batch_gradients():
    x, y = make_batches(updates=1)
    model, other = linear_model(), linear_model()
    train_on_whole_batches(model, torch.optim.SGD(model.parameters(), lr=0.04), x, y)
    train(other, optim.SGD(STEPS, other.parameters(), lr=0.04 / STEPS, reduction="sum"), x, y)

    torch.testing.assert_close(other.weight, model.weight, **EXACT)


def test_mean_reduction_notice_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr("runai.utils.notices._LOGGED", set())
    for _ in range(2):
        optim.Optimizer(torch.optim.SGD(linear_model().parameters()), STEPS)

    assert [record.message for record in caplog.records] == [optim.MEAN_NOTICE]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        pytest.param((0,), ValueError, "at least 1, not 0", id="no-steps"),
        pytest.param((2.0,), TypeError, "must be an integer, not 2.0", id="fractional-steps"),
        pytest.param((2, "max"), ValueError, "not 'max'", id="unknown-reduction"),
    ],
)
def test_invalid_argument_of_an_accumulating_optimizer_is_named_in_the_error(
    arguments, error, text
):
    with pytest.raises(error, match=text):
        optim.Optimizer(torch.optim.SGD(linear_model().parameters()), *arguments)


def test_gradient_accumulation_with_lbfgs_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="several times for each update"):
        optim.LBFGS(STEPS, linear_model().parameters())


def test_zero_grad_clears_gradients_only_where_an_update_begins():
    model = linear_model()
    optimizer = optim.SGD(2, model.parameters())
    cleared = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        cleared.append(None if model.weight.grad is None else bool((model.weight.grad == 0).all()))
        model(torch.ones(5, dtype=torch.float64)).sum().backward()
        optimizer.step()

    assert cleared == [None, None, True]


def test_gradient_clipping_acts_on_the_whole_accumulated_gradient():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    expected, weights = train_on_whole_and_micro_batches(
        lambda parameters: torch.optim.SGD(parameters, lr=0.5), before_step=clip
    )

    torch.testing.assert_close(weights, expected, **EXACT)


def test_gradients_of_several_losses_of_a_micro_batch_are_added():
    x, y = make_batches(updates=2)

    def train_twice(optimizer_of, x, y):
        model = linear_model()
        optimizer = optimizer_of(model.parameters())
        for xs, ys in zip(x, y, strict=True):
            optimizer.zero_grad()
            loss_of(model, xs, ys).backward()
            (0.1 * model(xs).abs().mean()).backward()
            optimizer.step()
        return model.weight

    expected = train_twice(lambda p: torch.optim.SGD(p, lr=0.1), x.flatten(1, 2), y.flatten(1, 2))
    weights = train_twice(lambda p: optim.SGD(STEPS, p, lr=0.1), x.flatten(0, 1), y.flatten(0, 1))

    torch.testing.assert_close(weights, expected, **EXACT)


def test_gradients_of_autograd_grad_are_not_accumulated():
    x, y = make_batches(updates=1)

    def compare_gradients(model):
        (gradient,) = torch.autograd.grad(loss_of(model, x[0, 0], y[0, 0]), model.weight)
        (plain,) = torch.autograd.grad(
            loss_of(reference := copy.deepcopy(model), x[0, 0], y[0, 0]), reference.weight
        )
        torch.testing.assert_close(gradient, plain, **EXACT)

    expected, weights = train_on_whole_and_micro_batches(
        lambda parameters: torch.optim.SGD(parameters, lr=0.5), before_step=compare_gradients
    )

    torch.testing.assert_close(weights, expected, **EXACT)


def test_optimizer_step_calls_its_closure_for_each_micro_batch():
    x, y = make_batches(updates=2)
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y)
    optimizer = optim.SGD(STEPS, other.parameters(), lr=0.1)
    losses = []
    for xs, ys in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True):

        def closure(xs=xs, ys=ys):
            optimizer.zero_grad()
            loss = loss_of(other, xs, ys)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())

    torch.testing.assert_close(other.weight.detach(), expected, **EXACT)
    assert len(losses) == 2 * STEPS


def test_flushed_tail_of_an_epoch_is_weighted_by_its_samples():
    torch.manual_seed(1)
    x = torch.randn(96, 5, dtype=torch.float64)
    y = torch.randn(96, 2, dtype=torch.float64)
    model, other = linear_model(), linear_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = optim.SGD(STEPS, other.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        plain.zero_grad()
        loss_of(model, x, y).backward()
        plain.step()
        for xs, ys in zip(x.split(40), y.split(40), strict=True):  # 40, 40, 16: three of four steps
            optimizer.zero_grad()
            optimizer.runai.samples = len(xs)
            loss_of(other, xs, ys).backward()
            optimizer.step()
        optimizer.flush()

    assert optimizer.runai.updated
    torch.testing.assert_close(other.weight, model.weight, **EXACT)


def test_accumulation_steps_changed_between_updates_give_exact_weights():
    x, y = make_batches(updates=2, steps=12)
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.AdamW(model.parameters()), x, y)
    optimizer = optim.AdamW(STEPS, other.parameters())
    for number, steps in enumerate((3, 6)):
        optimizer.runai.steps = steps
        shape = (1, steps, 72 // steps, -1)  # 12 * 6 samples of an update
        train(other, optimizer, x[number].reshape(shape), y[number].reshape(shape))

    torch.testing.assert_close(other.weight.detach(), expected, **EXACT)


def test_optimizer_step_hooks_run_once_for_each_accumulated_update():
    model, hook_calls = linear_model(), []
    plain = torch.optim.SGD(model.parameters())
    plain.register_step_post_hook(lambda *_: hook_calls.append("step"))
    train(model, optim.Optimizer(plain, STEPS, "mean"), *make_batches())

    assert hook_calls == ["step"] * 3


def test_optimizer_wrapped_for_accumulation_retains_its_state_and_type():
    x, y = make_batches(updates=4)
    model, other = linear_model(), linear_model()
    optimizer = torch.optim.Adam(other.parameters(), lr=0.02, weight_decay=0.1)
    expected = train_on_whole_batches(
        model, torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.1), x, y
    )
    train_on_whole_batches(other, optimizer, x[:2], y[:2])
    wrapped = optim.Optimizer(optimizer, STEPS, "mean")
    train(other, wrapped, x[2:3], y[2:3])
    train_on_whole_batches(other, optim.unwrap(wrapped), x[3:], y[3:])

    assert wrapped is optimizer
    assert torch.optim.Adam is type(optimizer)
    torch.testing.assert_close(other.weight.detach(), expected, **EXACT)


def test_parameter_group_added_later_has_the_defaults_and_is_accumulated():
    model, late = linear_model(), linear_model()
    optimizer = optim.SGD(2, model.parameters(), lr=0.5, momentum=0.9)
    optimizer.add_param_group({"params": late.parameters()})
    before = late.weight.detach().clone()
    for scale in (1, 3):
        optimizer.zero_grad()
        (scale * late.weight.sum()).backward()
        optimizer.step()

    assert tuple(optimizer.param_groups[1][key] for key in ("lr", "momentum")) == (0.5, 0.9)
    mean_gradient = (1 + 3) / 2
    torch.testing.assert_close(late.weight, before - 0.5 * mean_gradient, **EXACT)


def test_parameters_thawed_later_are_accumulated():
    model = linear_model()
    model.weight.requires_grad_(False)
    optimizer = optim.SGD(2, model.parameters(), lr=1)
    model.weight.requires_grad_(True)
    before = model.weight.detach().clone()
    for scale in (1, 3, 5, 7):
        optimizer.zero_grad()
        (scale * model.weight.sum()).backward()
        optimizer.step()

    first_mean, second_mean = (1 + 3) / 2, (5 + 7) / 2
    torch.testing.assert_close(model.weight, before - first_mean - second_mean, **EXACT)


def test_parameter_without_a_last_micro_batch_gradient_is_updated():
    model = linear_model()
    before = model.weight.detach().clone()
    optimizer = optim.SGD(2, model.parameters(), lr=1)
    model.weight.sum().backward()
    optimizer.step()
    optimizer.step()

    # The mean of a gradient of 1 and of no gradient.
    torch.testing.assert_close(model.weight, before - 0.5, **EXACT)


def test_abandoned_optimizer_of_the_same_parameters_has_no_effect():
    x, y = make_batches()
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y)
    abandoned = optim.SGD(2, other.parameters(), lr=0.1)
    loss_of(other, x[0, 0], y[0, 0]).backward()
    abandoned.step()
    del abandoned
    weights = train(other, optim.SGD(STEPS, other.parameters(), lr=0.1), x, y)

    torch.testing.assert_close(weights, expected, **EXACT)


def _load(blob):
    return torch.load(io.BytesIO(blob), weights_only=True)


def _save(value):
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize("steps", [pytest.param(1, id="plain"), 2, 4])
def test_optimizer_checkpoint_resumes_with_any_number_of_accumulation_steps(steps):
    x, y = make_batches(updates=4)
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.AdamW(model.parameters()), x, y)
    optimizer = optim.AdamW(STEPS, other.parameters())
    train(other, optimizer, x[:2], y[:2])
    blob = _save(optimizer.state_dict())
    resumed = torch.optim.AdamW(other.parameters())
    if steps > 1:
        optim.Optimizer(resumed, steps, "mean")
    resumed.load_state_dict(_load(blob))
    shape = (2, steps, 24 // steps, -1)
    weights = train(other, resumed, x[2:].reshape(shape), y[2:].reshape(shape))

    torch.testing.assert_close(weights, expected, **EXACT)


def test_plain_optimizer_checkpoint_resumes_with_accumulation():
    x, y = make_batches(updates=4)
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.AdamW(model.parameters()), x, y)
    plain = torch.optim.AdamW(other.parameters())
    train_on_whole_batches(other, plain, x[:2], y[:2])
    resumed = optim.AdamW(STEPS, other.parameters())
    resumed.load_state_dict(_load(_save(plain.state_dict())))

    torch.testing.assert_close(train(other, resumed, x[2:], y[2:]), expected, **EXACT)


def test_checkpoint_of_the_original_library_is_loaded():
    model = linear_model()
    plain = torch.optim.Adam(model.parameters())
    train_on_whole_batches(model, plain, *make_batches())
    state = optim.State()
    state.steps, state.step = STEPS, 3 * STEPS
    original = plain.state_dict()
    original["state"]["runai"] = state  # as pickled by 0.4.1, which stores the class by name
    resumed = optim.Adam(2, model.parameters())
    resumed.load_state_dict(_load(_save(original)))

    assert resumed.runai.steps == 2
    assert plain.state_dict()["state"].keys() - {"runai"} == resumed.state_dict()["state"].keys()


@pytest.mark.parametrize(
    "duplicate",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda both: pickle.loads(pickle.dumps(both)), id="pickle"),
    ],
)
def test_copied_optimizer_is_independent_of_its_original(duplicate):
    x, y = make_batches(updates=4)
    model, other = linear_model(), linear_model()
    expected = train_on_whole_batches(model, torch.optim.Adam(model.parameters()), x, y)
    optimizer = optim.Adam(STEPS, other.parameters())
    train(other, optimizer, x[:2], y[:2])
    model_copy, optimizer_copy = duplicate((other, optimizer))
    train(other, optimizer, x[:1], y[:1])
    weights = train(model_copy, optimizer_copy, x[2:], y[2:])

    assert (optimizer_copy.runai.steps, optimizer_copy.runai.reduction) == (STEPS, "mean")
    torch.testing.assert_close(weights, expected, **EXACT)
