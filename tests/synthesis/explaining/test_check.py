"""Verdicts of `check_sketch` on each clause."""

import pytest

import taccl
from taccl.errors import InputError
from tests.effort import AMPLE_S


@pytest.fixture(scope="module")
def ndv2():
    """Two NDv2 nodes."""
    return taccl.topologies.ndv2(nodes=2)


def sketch(**tables):
    """A sketch with the given tables."""
    return taccl.Sketch.from_dict({"schema": 1, "name": "mine", **tables})


def check(ndv2, collective="allgather", **tables):
    """The report on a sketch with the given tables, and its clauses by name."""
    report = taccl.check_sketch(sketch(**tables), ndv2, collective, chunk_size="1MB")
    return report, {each.clause: each for each in report.clauses}


@pytest.mark.slow
def test_a_shipped_sketch_can_be_used(ndv2):
    """ndv2/sk1 is usable; the clause on connections binds, and costs as much as it raises the bound."""
    report = taccl.check_sketch("ndv2/sk1", ndv2, "allgather")
    clauses = {each.clause: each for each in report.clauses}
    assert report.usable
    assert report.free_us < report.bound_us
    cost = clauses["internode.connections"]
    assert cost.verdict == "binds"
    assert cost.cost_us == pytest.approx(report.bound_us - cost.bound_us)


@pytest.mark.slow
def test_a_clause_that_says_the_default_is_unused(ndv2):
    """Merging of at most six chunks between nodes is the default, so the clause is unused."""
    _, clauses = check(ndv2, merging={"max": 6})
    assert clauses["merging.max"].verdict == "unused"
    assert clauses["merging.max"].effect.startswith("is the default")


@pytest.mark.slow
def test_relays_that_keep_nothing_off_are_unused(ndv2):
    """A clause that lets a rank relay only chunks of its node is unused if other clauses forbid all other
    chunks anyway."""
    connections = {"0": [1]}
    _, clauses = check(ndv2, internode={"connections": connections, "relays": {"0": list(range(8))}})
    assert clauses["internode.relays"].verdict == "unused"
    assert "other clauses forbid" in clauses["internode.relays"].effect


@pytest.mark.slow
def test_own_before_relayed_is_unused_where_no_rank_relays(ndv2):
    """`own_before_relayed` is unused if every sender carries only its own chunks."""
    relays = {str(rank): [rank] for rank in range(8)}
    internode = {"connections": "direct-map", "relays": relays, "own_before_relayed": True}
    _, clauses = check(ndv2, internode=internode)
    assert clauses["internode.own_before_relayed"].verdict == "unused"


@pytest.mark.slow
def test_own_before_relayed_binds_where_a_sender_relays(ndv2):
    """`own_before_relayed` binds if rank 0 relays the chunks of all ranks."""
    _, clauses = check(ndv2, internode={"connections": {"0": [1]}, "own_before_relayed": True})
    assert clauses["internode.own_before_relayed"].verdict == "binds"


@pytest.mark.slow
def test_a_symmetry_guides(ndv2):
    """The verdict on a symmetry that swaps the nodes is "guides": it shrinks the model, but binds no schedule."""
    _, clauses = check(ndv2, symmetry=[{"offset": 8, "group": 16}])
    assert clauses["symmetry[0]"].verdict == "guides"
    assert "2 symmetries instead of 1" in clauses["symmetry[0]"].effect


@pytest.mark.slow
def test_a_symmetry_given_twice_is_unused(ndv2):
    """A symmetry that is given twice is unused the second time."""
    _, clauses = check(ndv2, symmetry=[{"offset": 8, "group": 16}, {"offset": 8, "group": 16}])
    assert clauses["symmetry[1]"].verdict == "unused"


@pytest.mark.slow
def test_of_too_many_symmetries_to_count_orbits_tell():
    """If symmetries are too many to count, orbits of links show whether a further symmetry has an effect.

    After shifts in groups of 3 and 4, a shift in groups of 12 merges orbits, and then one in groups of 6 does
    not.
    """
    topology = taccl.topologies.fully_connected(12)

    def effects(*groups):
        symmetry = [{"offset": 1, "group": group} for group in groups]
        sketch = taccl.Sketch.from_dict({"schema": 1, "name": "mine", "symmetry": symmetry})
        clauses = taccl.check_sketch(sketch, topology, "allgather", chunk_size="1MB").clauses
        return [each.effect for each in clauses if each.clause.startswith("symmetry")]

    assert effects(3, 4, 12)[2] == "reduces the model further, without binding schedules"
    assert effects(3, 4, 12, 6)[3] == "the other symmetries reduce the model as much"


@pytest.mark.slow
def test_an_invalid_symmetry_gets_the_nearest_valid_one(ndv2):
    """A shift of all ranks by one is no symmetry: the message names the nearest valid shift, by 8 in the same
    groups."""
    report, clauses = check(ndv2, symmetry=[{"offset": 1, "group": 16}])
    assert not report.usable
    assert clauses["symmetry[0]"].verdict == "wrong"
    assert "0->1 (23 us/MB)" in clauses["symmetry[0]"].effect
    assert clauses["symmetry[0]"].effect.endswith("offset 8 in groups of 16")


@pytest.mark.slow
def test_every_fault_is_found_at_once(ndv2):
    """Three of four clauses do not fit the topology: all three are reported, and the fourth is checked."""
    report, clauses = check(
        ndv2,
        internode={"connections": {"0": [9]}},
        switch=[{"ranks": [0, 7]}],
        symmetry=[{"offset": 1, "group": 16}, {"offset": 8, "group": 16}],
    )
    wrong = {name for name, each in clauses.items() if each.verdict == "wrong"}
    assert wrong == {"internode.connections", "switch[0]", "symmetry[0]"}
    assert clauses["symmetry[1]"].verdict == "guides"
    assert report.bound_us is not None


@pytest.mark.slow
def test_an_infeasible_sketch_names_what_blocks(ndv2):
    """In each node only local rank 0 may send to the other node, and only its own chunk: both clauses are
    reported as blocking."""
    report, clauses = check(ndv2, internode={"connections": {"0": [1]}, "relays": {"0": [0]}})
    assert not report.usable
    assert report.bound_us is None
    # 14 of the 16 chunks do not start at a local rank 0 and are stuck.
    assert report.num_unreachable == 14
    assert clauses["internode.connections"].verdict == "blocks"
    assert clauses["internode.relays"].verdict == "blocks"
    assert "chunk 1 of allgather" in report.limits
    assert report.change


@pytest.mark.slow
def test_a_symmetry_that_is_not_used_is_hinted_at(ndv2):
    """A hint names an unused symmetry: swapping the nodes would make the model smaller."""
    report, _ = check(ndv2, merging={"max": 1})
    assert any("offset 8 in groups of 16" in hint for hint in report.hints)


@pytest.mark.slow
def test_a_sum_is_checked_in_both_phases(ndv2):
    """An allreduce is checked in its reduce phase as well as in its broadcast phase."""
    report, clauses = check(ndv2, "allreduce", internode={"connections": {"0": [1]}})
    assert report.usable
    assert clauses["internode.connections"].verdict == "binds"


@pytest.mark.slow
def test_the_report_reads_as_a_table(ndv2):
    """The repr of a report has the verdict, the bounds and a line for each clause."""
    report, _ = check(ndv2, internode={"connections": {"0": [1]}})
    text = repr(report)
    assert text.startswith("SketchReport: mine can be used\n  bound 917.4 us")
    assert "\n  internode.connections  binds " in text


def test_effects_are_unknown_once_time_is_up(ndv2, monkeypatch):
    """Without time, a clause has the verdict unknown, and the bound of the sketch is still given."""
    monkeypatch.setattr("taccl.synthesis.explaining.check._LATE_S", 0.0)
    monkeypatch.setattr("taccl.analysis.certificates.bounds._SMALL_S", AMPLE_S)  # the bound's own minimum
    given = sketch(internode={"connections": {"0": [1]}})
    report = taccl.check_sketch(given, ndv2, "allgather", chunk_size="1MB", time_limit_s=1e-6)
    assert {each.verdict for each in report.clauses} == {"unknown"}
    assert "not determined: time was up" in repr(report)
    assert report.usable and report.bound_us > 0


@pytest.mark.slow
def test_the_report_as_plain_values(ndv2):
    """`to_dict` has every figure and clause of the report."""
    report, clauses = check(ndv2, internode={"connections": {"0": [1]}})
    values = report.to_dict()
    assert values["bound_us"] == report.bound_us
    assert [each["clause"] for each in values["clauses"]] == list(clauses)


@pytest.mark.slow
def test_a_sketch_without_clauses_costs_nothing(ndv2):
    """A sketch without clauses has the bound of its topology."""
    report, clauses = check(ndv2)
    assert report.bound_us == report.free_us
    assert clauses == {}


def test_a_missing_size_is_an_error(ndv2):
    """A sketch without a size is an error, as there is nothing to bound."""
    with pytest.raises(InputError, match=r"chunks\.size"):
        taccl.check_sketch(sketch(), ndv2, "allgather")


def test_another_machine_is_an_error(ndv2):
    """A sketch for another machine is an error, not a clause to drop."""
    with pytest.raises(InputError, match="machine: found 'dgx2'"):
        taccl.check_sketch(sketch(machine="dgx2"), ndv2, "allgather", chunk_size=1)
