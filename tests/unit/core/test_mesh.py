"""Names of ranks by their places in the mesh."""

from __future__ import annotations

import itertools

from ttrace.core.mesh import NO_MESH, Mesh


def grid(**axes: int) -> Mesh:
    """Ranks in the order in which the last axis runs fastest."""
    places = itertools.product(*(range(size) for size in axes.values()))
    return Mesh(axes=axes, coordinates=tuple(places))


def test_ranks_are_named_by_their_coordinates() -> None:
    mesh = grid(dp=2, tp=2)
    assert [mesh.name(rank) for rank in range(4)] == ["dp0 tp0", "dp0 tp1", "dp1 tp0", "dp1 tp1"]
    assert mesh.name(4) == ""
    assert NO_MESH.name(0) == ""


def test_axes_that_tell_nothing_apart_are_left_out() -> None:
    """One of one rank, and one that is another by a second name."""
    places = tuple((rank, 0, rank) for rank in range(2))
    mesh = Mesh(axes={"dp": 2, "pp": 1, "dp_shard": 2}, coordinates=places)
    assert [mesh.name(rank) for rank in range(2)] == ["dp0", "dp1"]


def test_mesh_that_does_not_tell_all_ranks_apart_names_none() -> None:
    mesh = Mesh(axes={"tp": 2}, coordinates=((0,), (1,), (0,), (1,)))
    assert mesh.name(1) == ""
    assert mesh.common((1, 3)) == ()


def test_ranks_have_coordinates_in_common_only_where_no_other_has_them() -> None:
    mesh = grid(dp=2, tp=2)
    assert mesh.common((1, 3)) == ("tp1",)
    assert mesh.common((2, 3)) == ("dp1",)
    assert mesh.common((2,)) == ("dp1", "tp0")
    assert mesh.common((1, 2)) == ()
    assert mesh.common((0, 1, 2)) == ()
    assert mesh.common(()) == ()


def test_neighbours_along_an_axis_differ_in_nothing_else() -> None:
    mesh = grid(dp=2, tp=2)
    assert list(mesh.along("tp")) == [(0, 1), (2, 3)]
    assert list(mesh.along("dp")) == [(0, 2), (1, 3)]


def test_axes_between_ranks_are_those_in_which_alone_they_differ() -> None:
    mesh = grid(dp=2, tp=2)
    assert mesh.between((1,), (0,)) == ("tp",)
    assert mesh.between((2, 3), (0,)) == ("dp",)
    assert mesh.between((3,), (0,)) == ()
    assert mesh.between((1, 2), (0,)) == ("dp", "tp")
