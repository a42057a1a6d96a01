"""Whether two series differ: held against distributions whose answer is known."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from torchsmith.bench.measure import orders
from torchsmith.bench.result import Measured
from torchsmith.bench.verdicts import (
    CONTROL,
    adjusted,
    change,
    judge,
    log_ratios,
    quantile,
    shift,
    signed_rank_tail,
    student_p,
    trimmed_p,
)

pytestmark = pytest.mark.unit


def noisy(chance: random.Random, rounds: int, size: float = 0.03) -> list[float]:
    """Log-ratios of nothing but noise, now and then a wild one."""
    return [
        chance.gauss(0, size) + (chance.choice((-1, 1)) * 0.5 if chance.random() < 0.1 else 0)
        for _ in range(rounds)
    ]


def test_the_signed_rank_distribution_is_the_one_in_the_books() -> None:
    # Two-sided 5 % of Wilcoxon's table: at most 0 for six pairs, 13 for twelve.
    assert 2 * signed_rank_tail(6)[0] == pytest.approx(0.03125)
    assert 2 * signed_rank_tail(12)[13] < 0.05 < 2 * signed_rank_tail(12)[14]
    assert signed_rank_tail(12)[-1] == pytest.approx(1.0)


def test_nothing_but_noise_is_called_a_difference_no_more_often_than_stated() -> None:
    chance = random.Random(7)
    for rounds in (6, 12):
        calls = sum(trimmed_p(noisy(chance, rounds)) <= 0.05 for _ in range(1000))
        # Five in a hundred are allowed; three deviations above that would be 70.
        assert calls <= 70


def test_the_interval_holds_the_truth_as_often_as_stated() -> None:
    chance = random.Random(8)
    held = 0
    for _ in range(1000):
        found = shift([0.1 + value for value in noisy(chance, 12)])
        held += found.low <= 0.1 <= found.high
    assert held >= 930


def test_a_tenth_is_found_in_noise_of_a_thirtieth() -> None:
    chance = random.Random(9)
    for _ in range(100):
        found = shift([math.log(1.1) + chance.gauss(0, 0.03) for _ in range(12)])
        assert found.p <= 0.001
        assert found.low > 0


def test_a_tenth_is_mostly_found_among_wild_rounds() -> None:
    chance = random.Random(9)
    found = [shift([math.log(1.1) + value for value in noisy(chance, 12)]) for _ in range(300)]
    assert sum(item.p <= 0.05 and item.low > 0 for item in found) >= 240
    assert median([item.middle for item in found]) == pytest.approx(math.log(1.1), abs=0.01)


def test_the_same_numbers_do_not_differ() -> None:
    assert shift([0.0] * 8).p == 1.0
    assert trimmed_p([0.1]) == 1.0
    with pytest.raises(ValueError, match="nothing"):
        shift([])


def test_with_few_rounds_the_interval_is_everything_seen() -> None:
    found = shift([0.1, 0.2, 0.3])
    assert (found.low, found.middle, found.high) == pytest.approx((0.1, 0.2, 0.3))
    assert 0.05 < found.p < 0.1


def test_six_rounds_are_enough_for_what_is_plain() -> None:
    assert trimmed_p([1.0, 1.1, 0.9, 1.05, 0.95, 3.0]) < 0.001


def test_chances_are_those_of_students_tables() -> None:
    for freedom, t, chance in ((1, 12.706, 0.05), (7, 2.365, 0.05), (3, 5.841, 0.01)):
        assert student_p(t, freedom) == pytest.approx(chance, rel=1e-3)
    assert student_p(0.0, 5) == 1.0


def test_many_comparisons_are_corrected_for() -> None:
    assert adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert adjusted([]) == []


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1, 2], 0.95) == pytest.approx(1.95)


def series(chance: random.Random, seconds: float, noise: float = 0.01) -> tuple[float, ...]:
    return tuple(seconds * math.exp(chance.gauss(0, noise)) for _ in range(12))


def measured(chance: random.Random, count: int, ratio: float, noise: float) -> list[Measured]:
    """Cases whose first side takes 1 ms and its copy too, the other `ratio` of that."""
    return [
        Measured(
            f"case {number}",
            "matmul",
            "cpu",
            {
                "ours": series(chance, 1e-3, noise),
                CONTROL: series(chance, 1e-3, noise),
                "pip": series(chance, 1e-3 * ratio, noise),
            },
        )
        for number in range(count)
    ]


def test_two_of_the_same_are_not_called_different() -> None:
    chance = random.Random(3)
    called = 0
    for _ in range(20):
        compared, groups, _ = judge(measured(chance, 40, 1.0, 0.02), "ours", ["pip"])
        called += sum(item.verdict in ("faster", "slower") for item in (*compared, *groups))
    # 820 comparisons; the correction allows the odd one.
    assert called <= 4


def test_a_tenth_more_is_called_and_which_way() -> None:
    chance = random.Random(4)
    compared, groups, noise = judge(measured(chance, 30, 1.1, 0.01), "ours", ["pip"])
    assert {item.verdict for item in compared} == {"faster"}
    assert [(item.group, item.verdict) for item in groups] == [("matmul", "faster")]
    assert groups[0].speedup == pytest.approx(1.1, abs=0.01)
    assert noise[0].cases == 30
    slower, _, _ = judge(measured(chance, 30, 0.9, 0.01), "ours", ["pip"])
    assert {item.verdict for item in slower} == {"slower"}


def test_a_difference_below_the_floor_is_none() -> None:
    chance = random.Random(5)
    cases = [
        Measured(
            "one",
            "matmul",
            "cpu",
            {
                # The copy is as far away as the other side: the machine does that by itself.
                "ours": series(chance, 1e-3),
                CONTROL: series(chance, 1.2e-3),
                "pip": series(chance, 1.15e-3),
            },
        )
    ]
    compared, _, noise = judge(cases, "ours", ["pip"])
    assert compared[0].verdict not in ("faster", "slower")
    assert compared[0].floor == pytest.approx(1.2, abs=0.02)
    assert noise[0].called == 1


def test_sides_without_times_are_left_out() -> None:
    cases = [Measured("one", "fft", "cpu", {"ours": (1.0, 1.0)}, missing={"pip": "not there"})]
    assert judge(cases, "ours", ["pip"]) == ((), (), ())


def test_every_order_is_followed_by_its_reverse() -> None:
    found = list(orders(["a", "b", "c"], 6, random.Random(1)))
    assert found[1] == found[0][::-1]
    assert found[3] == found[2][::-1]
    assert all(sorted(order) == ["a", "b", "c"] for order in found)
    assert found == list(orders(["a", "b", "c"], 6, random.Random(1)))


def test_ratios_say_how_much_quicker_the_first_is() -> None:
    assert log_ratios([1.0, 2.0], [2.0, 1.0]) == pytest.approx([math.log(2), -math.log(2)])


def judged(lives: tuple[int, ...] = (), **sides: tuple[float, ...]) -> str:
    times = {("first again" if name == "again" else name): item for name, item in sides.items()}
    cases = [Measured("one", "fft", "cpu", times, lives)]
    return judge(cases, "ours", ["pip"])[0][0].verdict


def test_a_process_that_is_slow_for_as_long_as_it_lives_is_no_difference() -> None:
    chance = random.Random(6)
    usual = [series(chance, 1e-3) for _ in range(3)]
    slow = series(chance, 3e-3)
    assert judged(ours=slow, again=usual[0], pip=usual[1]) == "unclear"
    assert judged(ours=usual[0], again=slow, pip=usual[1]) == "unclear"
    assert judged(ours=slow, again=series(chance, 3e-3), pip=usual[1]) == "slower"


def test_a_difference_has_to_be_there_in_every_life() -> None:
    chance = random.Random(6)
    quick, slow = series(chance, 1e-3)[:4], series(chance, 2e-3)[:8]
    for lives, verdict in (((8, 4), "unclear"), ((12,), "faster")):
        pip = (*slow, *(0.99 * value for value in quick))
        ours = (*series(chance, 1e-3)[:8], *quick)
        assert judged(lives, ours=ours, again=ours, pip=pip) == verdict


def test_only_a_narrow_interval_around_one_is_no_difference() -> None:
    chance = random.Random(6)
    wide = [series(chance, 1e-3, 0.2) for _ in range(3)]
    narrow = [series(chance, 1e-3, 0.01) for _ in range(3)]
    assert judged(ours=wide[0], again=wide[1], pip=wide[2]) == "unclear"
    assert judged(ours=narrow[0], again=narrow[1], pip=narrow[2]) == "same"


def test_a_change_is_told_with_its_interval() -> None:
    assert change([1.0, 2.0, 4.0] * 3, [1.02, 2.04, 4.08] * 3) == (
        "+2.00% (95 %: +2.00% to +2.00%, 9 rounds)"
    )
