"""Process groups: collectives over some ranks, several groups together, and relays."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError, InfeasibleError, SketchError, TopologyError
from taccl.problem.chunks import Chunk, ProcessGroup
from taccl.problem.collective import Collective
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.sketch.symmetry import chunk_permutation
from taccl.synthesis.explaining.explain import explain
from taccl.synthesis.proposers.large import schedule_large
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import fully_connected, mesh, ring
from taccl.topology.machines import dgx_h100
from taccl.topology.transform import without
from tests.effort import brief_synthesis
from tests.fuzzing import some
from tests.synthesis.small_problems import linked

MB = 10**6


def problem(collective, *, relays=None, topology=None):
    """A problem on a ring with 1 MB chunks."""
    clauses = Clauses(relays=None if relays is None else frozenset(relays), routing_slack=10)
    return make_problem(topology or ring(collective.num_ranks), collective, chunk_bytes=MB, clauses=clauses)


class TestAmong:
    """`among`: a collective over some ranks of a larger topology."""

    def test_member_i_takes_the_part_of_rank_i(self):
        """Members may be listed in any order: here rank 0 of the collective is rank 5 of the topology."""
        placed = collectives.scatter(3).among([5, 1, 3], num_ranks=6)
        assert placed.chunks == (Chunk((5,), (5,)), Chunk((5,), (1,)), Chunk((5,), (3,)))
        assert placed.num_ranks == 6
        assert placed.groups == (ProcessGroup("scatter", (5, 1, 3), 3),)

    def test_roots_and_derivations_move_too(self):
        """The root of a reduction and the derivations of a scan are renumbered, too."""
        assert collectives.reduce(2, root=1).among([3, 0], num_ranks=4).chunks == (Chunk((0, 3), (0,), 0),)
        (derivation,) = collectives.scan(2).among([3, 0], num_ranks=4).derivations
        assert (derivation.source, derivation.rank, derivation.chunk) == (0, 0, 1)

    @pytest.mark.parametrize(
        ("ranks", "message"),
        [
            ([], "found no members"),
            ([0, 1, 1], r"ranks \[1\] are named twice"),
            ([0, 1, 8], "rank 8 does not exist; there are ranks 0-7"),
            ([0, 1, -1], "rank -1 does not exist"),
            ([0, 1, True], "found True; expected a whole number"),
            ([0, 1], "found 2 members; the collective is over 3 ranks"),
        ],
    )
    def test_members_are_known_and_distinct(self, ranks, message):
        """Members must be distinct ranks, as many as the collective has."""
        with pytest.raises(CollectiveError, match=message):
            collectives.allgather(3).among(ranks, num_ranks=8)

    def test_bus_bandwidth_counts_members(self):
        """The bandwidth factor of four members is 3/4, however large the topology."""
        assert collectives.allgather(4).among([0, 2, 4, 6], num_ranks=8).busbw_factor == 3 / 4

    def test_size_counts_a_members_buffer(self):
        """An allgather of four members has a size of four chunks."""
        placed = collectives.allgather(4).among([0, 2, 4, 6], num_ranks=8)
        assert problem(placed).size_bytes == 4 * MB


class TestTogether:
    """`together`: several process groups as one collective."""

    def test_chunks_are_numbered_through(self):
        """Chunks are numbered group by group: two of the first, then three of the second."""
        joint = together(
            [
                collectives.allgather(2).among([0, 2], num_ranks=4),
                collectives.allgather(3).among([0, 1, 3], num_ranks=4),
            ]
        )
        assert joint.group_of_chunk == (0, 0, 1, 1, 1)
        assert joint.chunks_of_group == (range(2), range(2, 5))
        assert [c.origins for c in joint.chunks] == [(0,), (2,), (0,), (1,), (3,)]
        assert (joint.name, joint.num_ranks) == ("allgather x2", 4)

    def test_derivations_are_numbered_through(self):
        """Derivations name chunks by their numbers in the joint collective, here 2 and 3 for a second scan."""
        joint = together([collectives.scan(2).among(g, num_ranks=4) for g in ([0, 1], [2, 3])])
        assert [(d.source, d.rank, d.chunk) for d in joint.derivations] == [(0, 1, 1), (2, 3, 3)]

    @pytest.mark.slow
    def test_beside_sums_a_copy_is_a_sum_of_one(self):
        """Joined with an allreduce, an allgather's chunks become sums of one contribution, rooted at their
        origin."""
        joint = together(
            [
                collectives.allgather(2).among([0, 1], num_ranks=4),
                collectives.allreduce(2).among([2, 3], num_ranks=4),
            ]
        )
        assert joint.combining
        assert [c.root for c in joint.chunks] == [0, 1, 2, 3]
        assert verify(brief_synthesis(problem(joint), backend="greedy").schedule).ok

    @pytest.mark.parametrize(
        ("some", "message"),
        [
            ([], "found no collectives"),
            ([collectives.allgather(3), collectives.allgather(4)], "over 4 ranks, and the first over 3"),
            ([collectives.scan(3), collectives.allreduce(3)], "schedule them separately"),
            (
                [
                    collectives.allreduce(2),
                    collectives.custom(2, precondition={0: [0, 1]}, postcondition={0: [0]}),
                ],
                "starts at 2 ranks",
            ),
        ],
    )
    def test_what_cannot_be_joined_is_refused(self, some, message):
        """Groups that cannot be joined are refused before any work."""
        with pytest.raises(CollectiveError, match=message):
            together(some)

    def test_bus_bandwidth_of_equal_groups(self):
        """Equal groups share a bandwidth factor; unequal groups have a factor of 1."""
        halves = [collectives.allgather(2).among(g, num_ranks=4) for g in ([0, 1], [2, 3])]
        assert together(halves).busbw_factor == 1 / 2
        assert together([halves[0], collectives.allgather(4)]).busbw_factor == 1.0


class TestGroups:
    """The groups recorded in a collective."""

    def test_a_collective_by_itself_is_one_group(self):
        """A single collective is one group of all ranks at which chunks start, are rooted or end."""
        lone = collectives.custom(5, precondition={0: [1]}, postcondition={0: [3, 4]})
        assert lone.process_groups == (ProcessGroup("custom", (1, 3, 4), 1),)
        assert lone.groups == ()

    def test_groups_survive_a_round_trip(self):
        """Groups survive a round trip; collectives without groups are written without the field."""
        joint = together([collectives.allgather(2).among(g, num_ranks=4) for g in ([0, 1], [3, 2])])
        assert Collective.from_dict(joint.to_dict()) == joint
        assert "groups" not in collectives.allgather(2).to_dict()

    @pytest.mark.parametrize(
        ("groups", "message"),
        [
            ((ProcessGroup("a", (0, 1), 1),), r"found groups of \[1\] chunks; expected 2 in all"),
            ((ProcessGroup("a", (0,), 2),), r"concern ranks \[1\], which are not in group 0"),
            ((ProcessGroup("a", (0, 0), 2),), "named twice"),
            ((ProcessGroup("a", (), 2),), "found no members"),
        ],
    )
    def test_groups_must_fit_their_chunks(self, groups, message):
        """A collective is refused if a chunk has a rank outside its group."""
        chunks = collectives.allgather(2).chunks
        with pytest.raises(CollectiveError, match=message):
            Collective("a", 2, chunks, groups=groups)


class TestRelays:
    """The clause on ranks that may relay chunks of other groups."""

    def test_by_default_any_rank_relays(self):
        """Any rank may relay by default: from 0 to 2 of a ring of four a chunk goes through 1 or 3."""
        placed = collectives.allgather(2).among([0, 2], num_ranks=4)
        assert verify(brief_synthesis(problem(placed), backend="greedy").schedule).ok

    def test_named_ranks_relay_and_others_do_not(self):
        """With rank 3 alone as a relay every chunk goes through it."""
        placed = collectives.allgather(2).among([0, 2], num_ranks=4)
        found = brief_synthesis(problem(placed, relays={3}), backend="greedy").schedule
        ends = [
            (found.problem.topology.links[e].src, found.problem.topology.links[e].dst) for e in found.link
        ]
        assert sorted(ends) == [(0, 3), (2, 3), (3, 0), (3, 2)]
        assert verify(found).ok

    def test_members_relay_for_their_own_group(self):
        """An alltoall on three neighbours of a ring: 0 -> 2 goes through 1, a member."""
        placed = collectives.alltoall(3).among([0, 1, 2], num_ranks=5)
        found = brief_synthesis(problem(placed, relays=set()), backend="greedy").schedule
        assert verify(found).ok
        assert {found.problem.topology.links[e].src for e in found.link} == {0, 1, 2}

    def test_members_of_another_group_do_not(self):
        """Members of another group do not relay: links between members of a group carry its chunks only."""
        joint = together([collectives.allgather(2).among(g, num_ranks=4) for g in ([0, 1], [2, 3])])
        limited = problem(joint, relays=set())
        link = limited.topology.links_between(0, 1)[0]
        assert [limited.may_carry(link, c) for c in range(4)] == [True, True, False, False]

    def test_the_verifier_sees_a_stranger(self):
        """If rank 1 relays a chunk without being allowed to, the verifier names it."""
        placed = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
        topology = mesh(3)
        links = [topology.links_between(0, 1)[0], topology.links_between(1, 2)[0]]

        def kinds(relays):
            way = exact_times(
                problem(placed, relays=relays, topology=topology), chunk=[0, 0], link=links, sequence=[0, 1]
            )
            return [(v.kind, v.clause) for v in verify(way).violations]

        assert kinds(None) == kinds({1}) == []
        assert kinds(set()) == [("link-not-allowed", "relays")] * 2

    def test_a_group_that_cannot_reach_its_members_is_reported(self):
        """If members cannot reach each other, the error names the relay clause, or the topology.

        The members are opposite ranks of a ring without relays, which then loses links, too.
        """
        placed = collectives.allgather(2).among([0, 2], num_ranks=4)
        with pytest.raises(
            SketchError, match="chunk 0 of allgather cannot get from rank 0 to rank 2: relays"
        ):
            check_reachable(problem(placed, relays=set()))
        cut = without(ring(4), links=[(0, 1), (1, 0), (0, 3), (3, 0)])
        with pytest.raises(TopologyError, match="has no path"):
            check_reachable(problem(placed, topology=cut))
        with pytest.raises(InfeasibleError, match="relays"):
            brief_synthesis(problem(placed, relays=set()), backend="greedy")

    def test_groups_with_equal_chunks_are_distinguished(self):
        """Chunks of two groups with equal ends may have different relays.

        Both groups send from 0 to 2 of a one-way ring; only chunks of the group of three ranks may go through
        rank 1.
        """
        builder = TopologyBuilder("one way", [0] * 3)
        for rank in range(3):
            builder.add_link(rank, (rank + 1) % 3, alpha_us=0, beta_us_per_mb=1)
        three = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
        two = collectives.custom(2, precondition={0: [0]}, postcondition={0: [1]})
        both = together([three.among((0, 1, 2), num_ranks=3), two.among((0, 2), num_ranks=3)])
        check_reachable(problem(both, topology=builder.build(), relays={1}))
        with pytest.raises(SketchError, match="chunk 1 of .* cannot get from rank 0 to rank 2: relays"):
            check_reachable(problem(both, topology=builder.build(), relays=set()))
        assert not explain(problem(both, topology=builder.build(), relays=set())).feasible

    def test_ranks_of_no_group_may_be_cut_off(self):
        """A rank of no group may be unreachable: here rank 3 has no links."""
        topology = linked("cut", [0] * 4, ((0, 1), (1, 0), (1, 2), (2, 1)), alpha_us=0, beta_us_per_mb=1)
        check_reachable(problem(collectives.allgather(3).among([0, 1, 2], num_ranks=4), topology=topology))

    def test_what_would_help_is_explained(self):
        """`explain` names the relay clause as the conflict, and proposes to drop it."""
        placed = collectives.allgather(2).among([0, 2], num_ranks=4)
        found = explain(problem(placed, relays=set()))
        assert not found.feasible
        assert found.conflict == (
            "sketch: relays: only some ranks pass on chunks of process groups that they are not in",
        )
        assert found.loosened.clauses.relays is None

    def test_relays_must_exist(self):
        """Rank 9 as a relay on a ring of four is refused."""
        with pytest.raises(SketchError, match=r"clauses.relays: ranks \[9\] do not exist"):
            problem(collectives.allgather(4), relays={9})

    def test_the_clause_survives_a_round_trip(self):
        """The clause on relays survives a round trip and changes the digest."""
        placed = collectives.allgather(2).among([0, 2], num_ranks=4)
        limited = problem(placed, relays={3})
        assert Problem.from_dict(limited.to_dict()) == limited
        assert limited.digest() != problem(placed).digest()
        assert "relays" not in problem(placed).clauses.to_dict()

    def test_halves_keep_their_groups(self):
        """A member that only contributes may relay in both phases."""
        one = problem(
            collectives.custom(3, precondition={0: [0, 1, 2]}, postcondition={0: [0]}, combining=True)
        )
        limited = one.with_clauses(relays=frozenset())
        assert reduce_phase(limited).holders(0) == broadcast_phase(limited).holders(0) == {0, 1, 2}

    def test_symmetry_keeps_who_may_hold_what(self):
        """Rotating a ring of four moves relay 1 to another rank, so it is not a symmetry."""
        placed = collectives.allgather(4).among([0, 1, 2, 3], num_ranks=4)
        half = collectives.allgather(2).among([0, 2], num_ranks=4)
        assert chunk_permutation(problem(placed, relays={1}), [1, 2, 3, 0]) is not None
        assert chunk_permutation(problem(half, relays={1, 3}), [2, 3, 0, 1]) == (1, 0)
        assert chunk_permutation(problem(half, relays={1}), [2, 3, 0, 1]) is None

    def test_bounds_know_the_clause(self):
        """Bounds take into account which ranks may relay.

        On a ring of five a chunk from 0 to 2 takes 2 hops, or 3 if rank 1 may not relay.
        """
        single = collectives.custom(5, precondition={0: [0]}, postcondition={0: [2]})
        free, limited = problem(single), problem(single, relays={3, 4})
        hop = free.costs.us(free.costs.duration(0, 1))
        assert lower_bound(free).bound == 2 * hop
        certificate = lower_bound(limited)
        assert certificate.bound == 3 * hop
        assert certificate.check()


class TestJointSchedules:
    """Groups scheduled together do not collide, and finish near the bound."""

    @pytest.mark.slow
    def test_rails_of_a_machine_together_meet_the_bound(self):
        """Four groups of 4 ranks, each on two rails of two H100 nodes, keep all NICs busy.

        Each node lacks 2 chunks of every group: 8 over 8 NICs, 20 us.
        """
        groups = [[2 * g, 2 * g + 1, 2 * g + 8, 2 * g + 9] for g in range(4)]
        joint = together([collectives.allgather(4).among(g, num_ranks=16) for g in groups])
        case = make_problem(dgx_h100(2, profile="nominal"), joint, chunk_bytes=MB).with_clauses(
            relays=frozenset()
        )
        found = schedule_large(case)
        assert verify(found).ok
        assert found.finish <= lower_bound(case).bound * 1.25

    @pytest.mark.slow
    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=some(5, 25), deadline=None)
    def test_random_groups_verify(self, seed):
        """Schedules for random topologies, groups and collectives, with and without relays, verify."""
        rng = random.Random(seed)
        num_ranks = rng.randint(4, 8)
        topology = rng.choice((ring, fully_connected))(num_ranks)
        placed = []
        for _ in range(rng.randint(1, 3)):
            members = rng.sample(range(num_ranks), rng.randint(2, min(4, num_ranks)))
            make = rng.choice(
                (collectives.allgather, collectives.alltoall, collectives.allreduce, collectives.broadcast)
            )
            placed.append(make(len(members)).among(members, num_ranks=num_ranks))
        limited = rng.random() < 0.5 and topology.num_ranks * (topology.num_ranks - 1) == len(topology.links)
        case = problem(together(placed), relays=set() if limited else None, topology=topology)
        result = brief_synthesis(case, backend="greedy")
        assert verify(result.schedule).ok
        assert result.bound.bound <= result.schedule.finish
