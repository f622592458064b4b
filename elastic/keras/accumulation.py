"""Gradient accumulation around any Keras optimizer, on any of Keras's back ends.

A micro-batch's gradient is added times its weight; everything else (clipping, weight decay,
schedules, moments, EMA, loss scale) is done by the plain optimizer once per update. `training` sets
weights and boundaries; `Periodic` (`runai.ga.keras`) counts itself. docs/dev/elastic.md explains
why Keras's own `gradient_accumulation_steps` is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops

# Attributes of a Keras optimizer's construction: the plain optimizer's values are used.
_PLAIN_ATTRIBUTES = (
    "weight_decay",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


class Accumulator(keras.optimizers.Optimizer):  # type: ignore[misc]  # keras has no types
    """An optimizer that sums weighted gradients; its plain optimizer updates at the last one.

    `begin` sets the next micro-batch's weight and whether it is the update's last. Both are
    variables: a change of the number of micro-batches recompiles nothing.

    In all else it behaves as the plain optimizer: learning rate, iterations, attributes, class and
    configuration. A saved model contains the plain optimizer and its state.
    """

    def __init__(self, optimizer: Any) -> None:
        plain = keras.optimizers.get(optimizer)
        if plain.gradient_accumulation_steps:
            raise ValueError(
                f"The optimizer {plain.name!r} accumulates by itself (gradient_accumulation_steps="
                f"{plain.gradient_accumulation_steps}): leave that out, the micro-batches are ours."
            )
        super().__init__(learning_rate=0.0, name=f"{plain.name}_accumulator")
        for name in _PLAIN_ATTRIBUTES:
            self.__dict__.pop(name, None)
        for unused in self._variables[:]:  # the iterations and learning rate of the base class
            self._untrack_variable(unused)
        self._plain = plain
        self._last_on_host = True
        self.replicas = 1
        """Devices of a `MirroredStrategy` that share each micro-batch."""
        self.sum_over_ranks: Callable[[list[Any], set[int]], set[int]] | None = None
        """Sums an update's gradients and the used variables over processes (PyTorch)."""
        self._used_indices: set[int] = set()
        self._weight = self.add_variable((), "ones", "float32", "only_first_replica", name="weight")
        self._last = self.add_variable((), "ones", "int32", "only_first_replica", name="last")

    # ------------------------------------------------------------------------ the plain optimizer

    @property
    def plain(self) -> Any:
        """The wrapped optimizer, which updates the weights."""
        return self._plain

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_plain" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._plain, name)

    def __dir__(self) -> Iterable[str]:
        # Keras saves the state of all attributes here: the plain optimizer's only.
        return dir(self.__dict__.get("_plain", type(self)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Keras writes this class into a saved model's configuration.
        return type(self.__dict__["_plain"]) if "_plain" in self.__dict__ else type(self)

    @property
    def variables(self) -> list[Any]:
        """Ours, then the plain optimizer's; the JAX back end passes them from step to step."""
        return [*self._variables, *self._plain.variables]

    @property
    def iterations(self) -> Any:
        """Number of updates, not of micro-batches."""
        return self._plain.iterations

    @property
    def learning_rate(self) -> Any:
        """The plain optimizer's learning rate; settable."""
        return self._plain.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._plain.learning_rate = value

    def get_config(self) -> dict[str, Any]:
        """Return the plain optimizer's configuration."""
        config: dict[str, Any] = self._plain.get_config()
        return config

    def save_own_variables(self, store: Any) -> None:
        """Save the plain optimizer's state."""
        self._plain.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Load the plain optimizer's state."""
        self._plain.load_own_variables(store)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the plain optimizer's state."""
        self._plain.set_weights(weights)

    def exclude_from_weight_decay(self, *args: Any, **options: Any) -> None:
        """Exclude variables in the plain optimizer."""
        self._plain.exclude_from_weight_decay(*args, **options)

    def scale_loss(self, loss: Any) -> Any:
        """Scale by the plain optimizer's factor, equal for all micro-batches of an update."""
        return self._plain.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Write the plain optimizer's averages into the model."""
        self._plain.finalize_variable_values(var_list)

    # --------------------------------------------------------------------------------- accumulation

    def begin(self, weight: float, *, last: bool) -> None:
        """Set the next micro-batch's weight, and whether the update follows it.

        On the JAX back end, `fit` passes variables itself: set both in its state instead.
        """
        self._last_on_host = last
        self._weight.assign(weight)
        self._last.assign(int(last))

    def turn_positions(self) -> tuple[int, int]:
        """Return the indices of weight and last-flag in `variables`."""
        ids = [id(variable) for variable in self._variables]
        return ids.index(id(self._weight)), ids.index(id(self._last))

    def build(self, variables: Sequence[Any]) -> None:
        """Create a sum for each variable, in float32 for narrower variables."""
        if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
            raise ValueError(
                "A variable that its gradient overwrites (float8 training) cannot be accumulated."
            )
        if not self._plain.built:
            self._plain.build(variables)
        sums = tuple(
            self.add_variable(
                variable.shape,
                dtype=_sum_dtype(variable),
                aggregation="only_first_replica",
                layout=getattr(variable, "_layout", None),
                name=f"sum_{index}",
            )
            for index, variable in enumerate(variables)
        )
        index = {self._plain._var_key(v): i for i, v in enumerate(variables)}  # noqa: SLF001
        # Bypass Keras's __setattr__, which would track the model's variables as the optimizer's.
        self.__dict__.update(_sums=sums, _index=index, _trainable_variables=list(variables))
        self.built = True

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Add a micro-batch's gradients; update after the last one."""
        if trainable_variables is not None and not self.built:
            self.build(list(trainable_variables))
        variables = list(
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        if self.replicas > 1:
            grads = _sum_over_replicas(grads)
        weight, last = self._next_weight_and_last()
        indices = [self._index[self._plain._var_key(v)] for v in variables]  # noqa: SLF001
        sums = [self._sums[i] for i in indices]
        totals = [
            total.value if grad is None else _add(total.value, grad, weight)
            for total, grad in zip(sums, grads, strict=True)
        ]
        # A variable that no micro-batch used has no gradient, not one of 0.
        used_indices = self._used_indices | {
            i for i, grad in zip(indices, grads, strict=True) if grad is not None
        }

        def update() -> None:
            used = used_indices
            if self.sum_over_ranks is not None:
                used = self.sum_over_ranks(totals, used_indices)
            shared = self.replicas  # the plain optimizer sums over replicas again
            self._plain.apply(
                [
                    ops.cast(total / shared, v.dtype) if i in used else None
                    for i, total, v in zip(indices, totals, variables, strict=True)
                ],
                variables,
            )
            for total in sums:
                total.assign(ops.zeros(total.shape, total.dtype))

        def store_sums() -> None:
            for variable, total in zip(sums, totals, strict=True):
                variable.assign(total)

        if isinstance(last, bool):
            (update if last else store_sums)()
        else:
            ops.cond(last, update, store_sums)
        self._used_indices = set() if last is True else used_indices

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Apply gradients without side effects, for the JAX back end.

        The plain optimizer runs inside a `cond`: no cost for other micro-batches.
        """
        count = len(self._variables)
        own, plain = list(optimizer_variables[:count]), list(optimizer_variables[count:])
        with keras.StatelessScope(list(zip(self._variables, own, strict=True))) as scope:
            weight, last = self._next_weight_and_last()
            counters = [scope.get_current_value(variable) for variable in self._variables]
        at = count - len(self._sums)
        totals = [_add(t, g, weight) for t, g in zip(own[at:], grads, strict=True)]

        def update() -> tuple[list[Any], list[Any], list[Any]]:
            new = [ops.cast(t, v.dtype) for t, v in zip(totals, trainable_variables, strict=True)]
            trained, state = self._plain.stateless_apply(plain, new, list(trainable_variables))
            return list(trained), list(state), [ops.zeros_like(total) for total in totals]

        def keep_sums() -> tuple[list[Any], list[Any], list[Any]]:
            return list(trainable_variables), plain, totals

        trained, state, totals = ops.cond(last, update, keep_sums)
        return trained, [*counters[:at], *totals, *state]

    def _next_weight_and_last(self) -> tuple[Any, Any]:
        """Return the micro-batch's weight, and whether the update follows it."""
        if keras.backend.backend() == "torch" or self.replicas > 1:
            # Reading from a GPU blocks; and replicas cannot synchronize inside a condition.
            return self._weight.value, self._last_on_host
        return self._weight.value, ops.not_equal(self._last, 0)


class Periodic(Accumulator):
    """Accumulation over a fixed number of steps, as in the original library.

    A variable counts the steps; each micro-batch has the weight `1 / steps`.
    """

    def __init__(self, optimizer: Any, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"The number of steps must be at least 1, not {steps}.")
        super().__init__(optimizer)
        self.steps = steps
        self._done = self.add_variable((), "zeros", "int32", "only_first_replica", name="done")

    def _next_weight_and_last(self) -> tuple[Any, Any]:
        """Count a step; return its weight, and whether the update follows it."""
        if keras.backend.backend() == "torch":
            done = getattr(self, "_done_on_host", 0) + 1
            self._done_on_host = done % self.steps
            return 1 / self.steps, done == self.steps
        done = ops.convert_to_tensor(self._done) + 1
        self._done.assign(ops.mod(done, self.steps))
        return 1 / self.steps, ops.equal(done, self.steps)


def _sum_dtype(variable: Any) -> str:
    dtype = str(keras.backend.standardize_dtype(variable.dtype))
    return "float32" if dtype in {"bfloat16", "float16"} else dtype


def _sum_over_replicas(grads: Sequence[Any]) -> list[Any]:
    import tensorflow as tf  # noqa: PLC0415  # a strategy of TensorFlow's

    dense_grads = [_dense(grad) for grad in grads if grad is not None]
    context = tf.distribute.get_replica_context()
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, dense_grads))
    return [None if grad is None else next(summed) for grad in grads]


def _dense(grad: Any) -> Any:
    if type(grad).__name__ == "IndexedSlices":  # TensorFlow's gradient of an embedding
        return ops.convert_to_tensor(grad, sparse=False)
    return grad


def _add(total: Any, grad: Any, weight: Any) -> Any:
    return total + ops.cast(_dense(grad), total.dtype) * ops.cast(weight, total.dtype)
