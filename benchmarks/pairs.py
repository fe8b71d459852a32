"""What measurements of two builds, taken in turns, say of them."""
from __future__ import annotations

import random
import statistics
from typing import Callable, TypeVar

_T = TypeVar("_T")


def in_turns(rounds: int, measure: Callable[[int], _T]) -> list[tuple[_T, _T]]:
    """Pairs of measure(0) and measure(1); neither always comes first, where it would find cold caches."""
    pairs = []
    for i in range(rounds):
        took = {which: measure(which) for which in (i % 2, 1 - i % 2)}
        pairs.append((took[0], took[1]))
    return pairs


def _interval(values: list[float]) -> tuple[float, float]:
    """Of the median, by resampling."""
    pick = random.Random(1)
    medians = sorted(statistics.median(pick.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def compared(pairs: list[tuple[float, float]], digits: int, unit: str = "") -> str:
    """Both medians, their ratio, and the median of the differences with its interval of 95 %."""
    before, after = (statistics.median(pair[which] for pair in pairs) for which in (0, 1))
    differences = [new - old for old, new in pairs]
    low, high = _interval(differences)
    return (f"before {before:.{digits}f}{unit}, after {after:.{digits}f}{unit} ({after / before:.3f} x); of the differences "
            f"{statistics.median(differences):+.{digits}f}{unit} ({low:+.{digits}f} to {high:+.{digits}f})")
