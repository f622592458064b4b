"""What the core is told of an elastic job's speed by size (E3).

Knows what is worth a GPU, and what to expect of a size that was never tried. Pure; called by
`picture`.
"""

from collections.abc import Mapping


def throughput_for_core(
    measured: Mapping[int, float], most: int, *, pays_from: float | None = 0.1
) -> dict[str, int]:
    """Return samples per 1000 seconds by number of GPUs; empty where nothing was measured.

    Sizes that do not pay are left out: beyond the largest that does nothing is gained. Where the
    largest that was tried did pay, larger ones are expected to go on so, in proportion. What pays
    is `ElasticRules.pays_from`; with None nothing is told, and every GPU does.

    >>> throughput_for_core({1: 10.0, 2: 18.0}, 4)
    {'1': 10000, '2': 18000, '4': 36000}
    >>> throughput_for_core({1: 10.0, 2: 18.0, 3: 18.5}, 4)
    {'1': 10000, '2': 18000}
    """
    paying: list[tuple[int, float]] = []
    for size, speed in sorted(measured.items()) if pays_from is not None else ():
        if not paying or speed - paying[-1][1] >= (pays_from or 0) * _in_proportion(
            paying[-1], size
        ):
            paying.append((size, speed))
    table = {str(size): round(speed * 1000) for size, speed in paying}
    if paying:
        size, speed = paying[-1]
        if size == max(measured) and size < most:
            table[str(most)] = round(speed * 1000 * most / size)
    return table


def _in_proportion(before: tuple[int, float], size: int) -> float:
    had, speed = before
    return speed / had * (size - had)
