"""Who is a replica of whom, by tables of ranks that are made here."""

from dataclasses import replace

from ttrace.capture.replicas.comparison import Roll, World, names_of
from ttrace.capture.replicas.held import ReplicaName
from ttrace.core.drift import SharedKind

GRADIENT, PARAMETER, BUFFER = SharedKind
WEIGHT = ReplicaName(kind=PARAMETER, module="a", name="weight", box="[0:4]")
BIAS = replace(WEIGHT, name="bias")
KNOWN = replace(WEIGHT, scope=(0, 1))


def world(*ranks: dict[ReplicaName, int]) -> World:
    rolls = [Roll() for _ in ranks]
    for roll, found in zip(rolls, ranks, strict=True):
        roll.meet(found)
    return World.of(roll.table() for roll in rolls)


def test_the_same_name_and_part_are_replicas_where_the_framework_says_so() -> None:
    assert world({KNOWN: 1}, {KNOWN: 2}).compared == {PARAMETER: 1}
    assert world({KNOWN: 1}, {replace(KNOWN, box="[4:8]"): 1}).compared == {}
    assert world({KNOWN: 1}, {replace(KNOWN, scope=(2, 3)): 1}).compared == {}


def test_elsewhere_all_parameters_of_a_module_must_agree_at_first() -> None:
    assert world({WEIGHT: 1, BIAS: 0}, {WEIGHT: 1, BIAS: 0}).compared == {PARAMETER: 2}
    apart = world({WEIGHT: 1, BIAS: 0}, {WEIGHT: 2, BIAS: 0})  # a bias of zeros says nothing
    assert (apart.compared, apart.unjudged) == ({}, {PARAMETER: 2})


def test_ranks_fall_into_groups() -> None:
    found = world(*({WEIGHT: value} for value in (1, 2, 1, 2, 3)))
    assert (found.compared, found.unjudged) == ({PARAMETER: 2}, {PARAMETER: 1})


def test_buffers_and_gradients_are_recognised_one_by_one() -> None:
    for kind in (BUFFER, GRADIENT):
        name = replace(KNOWN, kind=kind)
        assert world({name: 1}, {name: 1}).compared == {kind: 1}
        assert world({name: 1}, {name: 2}).compared == {}


def test_a_gradient_of_zeros_says_nothing() -> None:
    gradient, roll = replace(KNOWN, kind=GRADIENT), Roll()
    assert not roll.meet({gradient: 0})
    assert roll.meet({gradient: 5})
    assert not roll.meet({gradient: 6})


def test_what_is_not_judged_has_names() -> None:
    roll, other = Roll(), Roll()
    roll.meet({WEIGHT: 1})
    other.meet({WEIGHT: 2})
    found = World.of([roll.table(), other.table()])
    assert names_of(roll, found, 5) == ["parameter a.weight"]
