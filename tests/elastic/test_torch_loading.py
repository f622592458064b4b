"""The loader: every sample once per epoch in one order, for any and changing numbers of ranks."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks import run_ranks

pytestmark = pytest.mark.torch

RANKS = st.integers(1, 5)


def read_update(reading, dataset, **options):
    """Return the samples of a rank's micro-batches of the next update, and the MicroBatches."""
    from runai.elastic import torch as elastic

    loader = elastic.DataLoader(dataset, job=reading, collate_fn=list, **options)
    batches: list[list[int]] = []
    iterator = iter(loader)
    while not batches or not reading.begun[-1].last:
        batches.append(next(iterator))
    return batches, reading.begun


def read_epoch(dataset, sizes, ranks_of, **options):
    """Return the samples of each update of an epoch, read by `ranks_of(update)` ranks."""
    from elastic_reading import Reading
    from runai.elastic.torch.loading.position import Position

    updates, position = [], Position()
    while position.epoch == 0:
        ranks, micro = ranks_of(position.update), None
        samples: list[int] = []
        for rank in range(ranks):
            reading = Reading(*sizes, rank=rank, ranks=ranks, position=position)
            batches, micros = read_update(reading, dataset, **options)
            for batch, micro in zip(batches, micros, strict=True):
                samples += batch if micro.part.size else []
                assert len(batch) <= sizes[1]
        assert micro is not None
        updates.append(samples)
        position = position.after(micro.total, ends_epoch=micro.ends_epoch)
    return updates


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 50),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 8)),
    ranks=st.lists(RANKS, min_size=1),
    iterable=st.booleans(),
)
def test_resized_epoch_reads_each_sample_once_in_the_same_order(size, sizes, ranks, iterable):
    from elastic_reading import Indexed, Iterated

    dataset = (Iterated if iterable else Indexed)(size)
    single_rank = read_epoch(dataset, sizes, lambda _: 1)

    assert sorted(sample for update in single_rank for sample in update) == list(range(size))
    global_batch, _ = sizes
    assert [len(update) for update in single_rank[:-1]] == [global_batch] * (len(single_rank) - 1)
    assert read_epoch(dataset, sizes, lambda update: ranks[update % len(ranks)]) == single_rank


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["Indexed", "Iterated"])
def test_drop_last_yields_full_updates_at_any_number_of_ranks(kind, ranks):
    import elastic_reading

    global_batch, gpu_batch = 10, 4
    dataset = getattr(elastic_reading, kind)(23)
    updates = read_epoch(dataset, (global_batch, gpu_batch), lambda _: ranks, drop_last=True)

    assert [len(update) for update in updates] == [10, 10]


def test_sample_order_differs_by_epoch_and_seed():
    from runai.elastic.torch.loading.samples import order_of

    seeds_and_epochs = [(0, 0), (0, 1), (1, 0)]
    orders = [order_of(50, seed=s, epoch=e, shuffle=True).tolist() for s, e in seeds_and_epochs]

    assert all(sorted(order) == list(range(50)) for order in orders)
    assert all(a != b for a, b in pairwise([*orders, orders[0]]))
    assert order_of(4, seed=0, epoch=1, shuffle=False).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["Randomized", "RandomStream"])
def test_samples_and_their_random_numbers_do_not_depend_on_loading_processes(kind, tmp_path):
    from elastic_reading import SAMPLES, load_epoch

    single_rank = run_ranks(load_epoch, 1, tmp_path / "a", kind, 1, 0)[0]
    two_processes = run_ranks(load_epoch, 1, tmp_path / "b", kind, 1, 2)[0]
    three_ranks = run_ranks(load_epoch, 1, tmp_path / "c", kind, 3, 2)[0]

    random_numbers = {number for _, *numbers in single_rank for number in numbers}
    assert len(single_rank) == SAMPLES
    assert len(random_numbers) == 3 * SAMPLES  # each sample draws from three generators
    assert two_processes == single_rank
    assert three_ranks == single_rank


@pytest.mark.parametrize(
    ("kind", "processes", "ranks"),
    [
        ("SelfSharded", 0, 3),
        ("SelfSharded", 2, 1),
        ("SelfSharded", 3, 3),
        ("EagerlySharded", 3, 3),
        ("LazilySharded", 3, 3),
        ("InitSharded", 3, 3),
        ("Opened", 3, 3),
    ],
)
def test_data_set_divided_by_loading_process_yields_all_samples(kind, processes, ranks, tmp_path):
    from elastic_reading import SAMPLES, load_epoch

    samples = run_ranks(load_epoch, 1, tmp_path / "store", kind, ranks, processes)[0]

    assert sorted(samples) == list(range(SAMPLES))
    assert kind == "Opened" or samples == list(range(SAMPLES))


def test_sample_order_by_the_worker_seed_is_the_same_in_all_loading_processes(tmp_path):
    from elastic_reading import SAMPLES, load_epoch

    orders = [
        run_ranks(load_epoch, 1, tmp_path / str(n), "ShuffledByWorkerSeed", ranks, processes)[0]
        for n, (ranks, processes) in enumerate([(1, 1), (1, 3), (3, 2)])
    ]

    assert sorted(orders[0]) == list(range(SAMPLES))
    assert orders == [orders[0]] * 3


@pytest.mark.parametrize(
    ("kind", "size", "message", "processes"),
    [
        pytest.param("DividedByRank", 48, "different samples", 0, id="even-parts"),
        pytest.param("DividedByRank", 48, "different samples", 2, id="even-parts-two-processes"),
        pytest.param("LongerByRank", 20, "10 and 11 samples", 0, id="tail-longer"),
        pytest.param("LongerByRank", 19, "different samples", 0, id="one-update-more"),
        pytest.param("Whole", 47, "", 2, id="not-divided"),
    ],
)
def test_data_set_that_divides_itself_by_rank_is_refused(kind, size, message, processes, tmp_path):
    from elastic_trainings import refusal_of

    messages = run_ranks(refusal_of, 2, tmp_path / "store", kind, size, processes)

    assert all(message in actual for actual in messages), messages
    assert all(bool(actual) == bool(message) for actual in messages), messages


@pytest.mark.parametrize("name", ["batch_size", "sampler", "batch_sampler", "generator"])
def test_data_loader_refuses_options_that_the_plan_sets(name):
    from elastic_reading import Indexed
    from runai.elastic import torch as elastic

    with pytest.raises(TypeError, match=f"takes no {name}: "):
        elastic.DataLoader(Indexed(4), **{name: 1})  # type: ignore[arg-type]


def test_data_set_without_a_whole_update_is_an_error():
    from elastic_reading import Indexed, Reading

    with pytest.raises(ValueError, match="A data set of 3 samples has no update of 10"):
        read_update(Reading(10, 4), Indexed(3), drop_last=True)


@pytest.mark.parametrize("bitwise", [False, True])
def test_pickled_division_of_a_data_set_is_small_and_equal(bitwise):
    import pickle

    from runai.elastic.torch.parallel import RankDivision
    from runai.elastic.torch.virtual_workers import SliceDivision

    division = SliceDivision(8, 1, 3) if bitwise else RankDivision(4, 1, 3)
    pickled = pickle.dumps(division)

    assert len(pickled) < 200
    assert pickle.loads(pickled).parts(23) == division.parts(23)


def test_elastic_data_loader_length_is_the_number_of_remaining_micro_batches():
    from elastic_reading import Indexed, Reading
    from runai.elastic import torch as elastic
    from runai.elastic.torch.loading.position import Position

    reading = Reading(10, 4, position=Position(epoch=0, samples=10, update=1))

    # Of 13 samples, 10 are in three micro-batches of at most 4, and 3 are in one.
    assert len(elastic.DataLoader(Indexed(23), job=reading)) == 3 + 1


@pytest.mark.parametrize("kind", ["Indexed", "Iterated"])
def test_loading_process_survives_sigterm_while_its_parent_trains(kind, tmp_path):
    from elastic_reading import SAMPLES, load_epoch_after_sigterm

    samples, exit_codes = run_ranks(load_epoch_after_sigterm, 1, tmp_path / "store", kind)[0]

    assert sorted(samples) == list(range(SAMPLES))
    assert exit_codes == [0, 0]


def test_stuck_loading_process_does_not_hang_the_end_of_the_script():
    program = "from elastic_reading import break_out_of_stuck_loading as run; run()"
    tests = Path(__file__).parents[1]
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tests
    )

    assert completed.stdout == "broke\n"
