"""Cut bounds by prices of resources and sets of ranks: limiting cuts are found with exact witnesses."""

from fractions import Fraction

import pytest

from taccl import collectives, make_problem, topologies
from taccl.analysis.certificates import cuts
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.cuts import throughput
from taccl.analysis.certificates.finding.volume import Volume
from taccl.baselines import baseline
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.sketch.group import Symmetries, find_symmetries
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import raised
from tests.synthesis.small_problems import custom, full, linked, problem_of, ring

MB = 10**6


def barbell(size, *, bridge, nodes=False):
    """Two full graphs of `size` ranks at 1 us/MB, joined both ways by one slow link."""
    of_rank = [int(nodes and r >= size) for r in range(2 * size)]
    builder = TopologyBuilder("barbell", of_rank)
    for half in (range(size), range(size, 2 * size)):
        for a in half:
            for b in half:
                if a != b:
                    builder.add_link(a, b, alpha_us=0, beta_us_per_mb=1)
    for a, b in ((0, size), (size, 0)):
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=bridge)
    return builder.build()


def priced(problem, *, divisible=True, in_network=False, budget_s=20, fold=True):
    """The throughput bound in microseconds, and its witness."""
    symmetries = find_symmetries(problem) if fold else Symmetries(problem, ())
    volume = Volume(problem, divisible=divisible)
    found = throughput(volume, symmetries, in_network=in_network, budget_s=budget_s)
    return found[0] / problem.costs.ticks_per_us, found[1]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_bridge_of_a_barbell_is_found(size):
    """The bridge of a barbell without nodes is found: `size` chunks must cross a link of 10 us each.

    Cuts around single ranks give less: 2 size - 1 chunks enter over at least size - 1 links of 1 us.
    """
    problem = problem_of(barbell(size, bridge=10), collectives.allgather(2 * size))
    bound, witness = priced(problem)
    assert bound == 10 * size
    halves = {frozenset(range(size)), frozenset(range(size, 2 * size))}
    assert halves & {each.parts[0] for each in witness.charges if each.charge}


def test_without_time_the_bridge_is_not_found():
    """Without budget for more sets, cuts around single ranks give a valid bound below 30 us."""
    problem = problem_of(barbell(3, bridge=10), collectives.allgather(6))
    assert priced(problem, budget_s=0)[0] < 30


def test_no_more_sets_than_there_may_be(monkeypatch):
    """At the limit on the number of sets no further set is sought."""
    monkeypatch.setattr(cuts, "_MAX_SETS", 0)
    problem = problem_of(barbell(3, bridge=10), collectives.allgather(6))
    assert priced(problem)[0] < 30


def test_a_node_needs_no_search():
    """A cut around a node is an initial set, so it is found with a budget of 0 s."""
    problem = problem_of(barbell(3, bridge=10, nodes=True), collectives.allgather(6))
    assert priced(problem, budget_s=0)[0] == 30


def test_a_chain_of_three_has_two_bridges():
    """The slower of two bridges limits an allgather on a chain of three pairs.

    Four chunks enter the first pair over a bridge of 10 us, 40 us; four enter the last pair over one of 7 us.
    """
    builder = TopologyBuilder("chain", [0] * 6)
    for a in (0, 2, 4):
        for src, dst in ((a, a + 1), (a + 1, a)):
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    for (a, b), beta in {(1, 2): 10, (3, 4): 7}.items():
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), collectives.allgather(6))
    bound, witness = priced(problem)
    assert bound == 40
    assert frozenset((0, 1)) in {each.parts[0] for each in witness.charges if each.charge}


def test_ranks_share_what_enters_them_together():
    """A chunk for two ranks behind one NIC is counted once at the cut around both.

    The 3 chunks of a broadcast enter over the NIC at 4 us each: 12 us. The two ranks are 1 us apart.
    """
    builder = TopologyBuilder("NIC", [0, 1, 1])
    nic = builder.add_resource("NIC")
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=0, beta_us_per_mb=4)
        builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=4)
    for src, dst in ((1, 2), (2, 1)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(builder.build(), collectives.broadcast(3, chunks_per_rank=3))
    assert priced(problem)[0] == 12


def test_prices_of_several_resources_add_up():
    """Prices of each rank's links and of a NIC that two ranks share add up, as on a DGX-2.

    Two nodes of two ranks have links of 1 us inside, and a NIC of 4 us each. Each rank lacks 3 chunks, so 6
    enter the ranks of a node, at rates that add up to 1 + 1 + 1/4: 6 / (9/4) = 8/3 us. But 2 chunks must pass
    the NIC, which takes 8 us.
    """
    builder = TopologyBuilder("small DGX-2", [0, 0, 1, 1])
    nics = [builder.add_resource(f"NIC of node {n}") for n in (0, 1)]
    for src in range(4):
        for dst in range(4):
            if src == dst:
                continue
            inside = src // 2 == dst // 2
            link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1 if inside else 4)
            if not inside:
                builder.add_hold(link, nics[dst // 2], alpha_us=0, beta_us_per_mb=4, side="receive")
    problem = problem_of(builder.build(), collectives.allgather(4))
    assert priced(problem)[0] == 8


def test_sums_are_exchanged_twice():
    """Between n ranks a sum takes 2 (n - 1) sends.

    Four sums of 4 ranks that are fully joined by 12 links of 1 us take 4 * 6 / 12 us.
    """
    problem = problem_of(full(4), collectives.allreduce(4))
    bound, witness = priced(problem)
    assert bound == 2
    assert any(len(each.parts) == 4 for each in witness.charges)


@pytest.mark.parametrize(("workers", "servers", "sends"), [(4, 1, 8), (3, 2, 6), ((0, 1, 2, 3), (0,), 6)])
def test_sums_pass_the_servers_that_update_them(workers, servers, sends):
    """A sum leaves each worker other than its server, and comes back updated: sends over links of 1 us each."""
    exchange = collectives.exchange(workers, servers)
    num_ranks = exchange.num_ranks
    problem = make_problem(full(num_ranks), exchange, size_bytes=MB)
    bound, witness = priced(problem)
    links = num_ranks * (num_ranks - 1)
    assert bound == Fraction(sends, links)
    certificate = lower_bound(problem, divisible=True)
    assert certificate.kind == "throughput" and certificate.check() and not raised(certificate).check()


def test_a_sum_of_one_worker_is_not_whole_there():
    """Rank 0 sends 1 MB to its server in 4 us, and gets the updated sum from there in 1 us, after 5 us."""
    topology = linked("pair", [0, 0], [(0, 1, 0, 4), (1, 0, 0, 1)])
    chunk = Chunk((0,), (0, 1), root=1)
    sums = Collective("sums", 2, (chunk,), combining=True, update_us_per_mb=0)
    problem = problem_of(topology, sums)
    certificate = lower_bound(problem, divisible=False)
    assert certificate.bound == 5 and certificate.check() and not raised(certificate).check()
    assert priced(problem, divisible=False)[0] == 5


def test_sums_that_switches_make_enter_once():
    """With in-network reduction 4 sums enter each rank once, over 3 links: 4/3 us."""
    problem = problem_of(full(4), collectives.allreduce(4))
    assert priced(problem, in_network=True)[0] == Fraction(4, 3)


def test_sums_between_nodes():
    """Sums between nodes take 2 (n - 1) sends between n nodes, and NICs limit these.

    Three nodes have one rank and one NIC of 6 us each: 4 sums need 3 * 4 sends over 3 NICs, 24 us.
    """
    builder = TopologyBuilder("NICs", [0, 1, 2])
    nics = [builder.add_resource(f"NIC of node {n}") for n in range(3)]
    for src in range(3):
        for dst in range(3):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=6)
                builder.add_hold(link, nics[src], alpha_us=0, beta_us_per_mb=6)
    problem = problem_of(builder.build(), collectives.allreduce(3))
    assert priced(problem)[0] == 24


def test_whole_chunks_pay_alpha():
    """Each whole chunk pays alpha, while divisible data pays it once.

    Three chunks over a link of 2 + 1 us take 9 us; as divisible data 5 us.
    """
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=2, beta_us_per_mb=1)
    problem = problem_of(topology, custom(2, [([0], [1])] * 3))
    assert priced(problem, divisible=False)[0] == 9
    assert priced(problem, divisible=True)[0] == 5


def test_merged_chunks_pay_their_share_of_alpha():
    """A merged chunk pays its share of alpha: six chunks, three to a send, take 6 * (2/3 + 1) = 10 us."""
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=2, beta_us_per_mb=1)
    problem = problem_of(topology, custom(2, [([0], [1])] * 6), merging=frozenset({0}), max_merge=3)
    assert priced(problem, divisible=False)[0] == 10


def test_chunks_of_unequal_size_count_by_size():
    """Chunks of unequal size count by their bytes, and by their share of alpha.

    1, 2 and 3 MB over one link of 2 us/MB take 12 us, plus two alphas of 5 us (6 MB / 3 MB).
    """
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=5, beta_us_per_mb=2)
    problem = problem_of(topology, custom(2, [([0], [1])] * 3), chunk_bytes=[MB, 2 * MB, 3 * MB])
    assert priced(problem, divisible=False)[0] == 22


def test_links_that_are_not_allowed_carry_nothing():
    """One of two links from rank 0 to rank 1 is allowed: 3 chunks take 3 us, not 3/2."""
    topology = linked("pair", [0, 0], ((0, 1) for _ in range(2)), alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(topology, custom(2, [([0], [1])] * 3))
    assert priced(problem)[0] == Fraction(3, 2)
    assert priced(problem.with_clauses(links_allowed=frozenset({1})))[0] == 3


def test_nothing_that_crosses_has_no_price():
    """There is no throughput bound if every chunk starts where it must end."""
    problem = problem_of(ring(3), custom(3, [([0], [0])]))
    volume = Volume(problem, divisible=True)
    assert throughput(volume, find_symmetries(problem), in_network=False, budget_s=1) is None


@pytest.mark.parametrize("fold", [False, True])
def test_the_witness_proves_the_bound_to_the_last_digit(fold):
    """Prices stay exact fractions, so the witness proves the bound to the last digit.

    7 chunks enter each of 8 ranks over links of 3 and 7 us, which gives prices with thirds and sevenths. The
    rate into a rank is 1/3 + 1/7 = 10/21: 7 / (10/21) = 147/10 us.
    """
    builder = TopologyBuilder("thirds", [0] * 8)
    for r in range(8):
        builder.add_link(r, (r + 1) % 8, alpha_us=0, beta_us_per_mb=3)
        builder.add_link(r, (r - 1) % 8, alpha_us=0, beta_us_per_mb=7)
    problem = problem_of(builder.build(), collectives.allgather(8))
    assert priced(problem, fold=fold)[0] == Fraction(147, 10)


def test_what_limits_is_named():
    """`limits` names a rank, a node, or the ranks of a set."""
    said = lower_bound(problem_of(barbell(3, bridge=10), collectives.allgather(6)), divisible=True)
    assert said.limits in ("traffic into ranks 0, 1, 2 (3 ranks)", "traffic into ranks 3, 4, 5 (3 ranks)")
    nodes = problem_of(barbell(3, bridge=10, nodes=True), collectives.allgather(6))
    assert lower_bound(nodes, divisible=True).limits == "traffic into node 0"


def test_the_bottleneck_of_a_root_is_its_own():
    """The bound of a scatter names the traffic out of its root, and claims nothing about other ranks."""
    said = lower_bound(problem_of(ring(5), collectives.scatter(5, root=1)), divisible=True)
    assert (said.kind, said.limits) == ("throughput", "traffic out of rank 1")


@pytest.mark.parametrize("use", ["ring", "in-network", "recursive"])
def test_a_pool_of_slots_limits_what_is_shared(use):
    """The pool of a switch's slots and the ranks' ports together bound an allreduce.

    Four workers have ports of 80 us/MB, and the pool takes 160 us/MB. Sums in any mix of both take at least 2
    * 3 * 80 / (4 + 2 * 80 / 160) = 96 us/MB. In the best mix 0.6 of the data passes the switch. The pool is
    then busy for 0.6 * 160 us/MB. Each port is busy for (0.6 * 4 + 0.4 * 6) / 4 * 80 us/MB.
    """
    topology = topologies.in_network(4, slots=1, payload_bytes=62_500)
    problem = make_problem(topology, "allreduce", size_bytes=8_000_000)
    bound = lower_bound(problem, divisible=True)
    # Ports are idle for half a round trip, 5 us, at either end.
    assert 8 * 96 <= bound.bound <= 8 * 96 + 5
    assert bound.check()
    assert not raised(bound).check()
    assert baseline(use, problem).finish >= bound.bound


def test_a_send_of_several_ends_counts_for_each_pair_of_parts():
    """A multicast counts once for each other part of a partition that it reaches.

    The parts are three single ranks, of which only rank 0 has a multicast link. A sum needs four deliveries
    from part to part. The multicast makes two of them, so three sends are needed.
    """
    builder = TopologyBuilder("multicast", [0, 0, 0])
    port = builder.add_resource("port")
    for srcs, dsts in [((a,), (b,)) for a in range(3) for b in range(3) if a != b] + [((0,), (1, 2))]:
        builder.add_hold(
            builder.add_link(srcs, dsts, alpha_us=0, beta_us_per_mb=1), port, alpha_us=0, beta_us_per_mb=1
        )
    problem = problem_of(builder.build(), collectives.allreduce(3))
    # Three sums of three sends each at 1 us through one port take 9 us.
    bound = lower_bound(problem, divisible=True)
    assert bound.bound == 9
    assert bound.check()


def pairs_with_bridges(count, *, bridge, port):
    """Pairs of ranks with a fast bridge; each rank has a slow port to all other pairs (betas in us/MB)."""
    builder, ranks = TopologyBuilder("pairs", [0] * (2 * count)), range(2 * count)
    ports = [[builder.add_resource(f"{side} {rank}") for side in ("out of", "into")] for rank in ranks]
    for src in ranks:
        for dst in ranks:
            if src // 2 == dst // 2 and src != dst:
                builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=bridge)
            elif src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=port)
                for resource, side in ((ports[src][0], "send"), (ports[dst][1], "receive")):
                    builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=port, side=side)
    return builder.build()


@pytest.mark.parametrize(("count", "allreduce_us"), [(2, 40), (4, 60), (8, 70)])
def test_groups_of_ranks_with_fast_links_share_sums(count, allreduce_us):
    """Of 8 MB, each group shares 2 (count - 1) / count: its two ports of 10 us per MB carry half of that each.

    Bridges carry the rest. By ranks alone, the bound of four pairs is 2 (7 / 8) 8 MB over a bridge and a port.
    """
    topology = pairs_with_bridges(count, bridge=1, port=10)
    problem = make_problem(topology, "allreduce", size_bytes=8 * MB)
    bound = lower_bound(problem, divisible=True)
    assert bound.bound_us == pytest.approx(allreduce_us) and bound.check()
    assert bound.limits == f"traffic between {count} groups of ranks that share each sum" or count == 2


def test_slow_links_make_nested_groups():
    """Four ranks under each of two CPUs, in bridged pairs: pairs and CPUs are groups, and so is no rank alone."""
    builder = TopologyBuilder("two CPUs", [0] * 8)
    between = builder.add_resource("between CPUs")
    for src in range(8):
        for dst in range(8):
            if src != dst:
                beta = 1 if src // 2 == dst // 2 else 10
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
                if src // 4 != dst // 4:
                    builder.add_hold(link, between, alpha_us=0, beta_us_per_mb=beta, side="send")
    problem = make_problem(builder.build(), "allreduce", size_bytes=8 * MB)
    groups = cuts._fast_groups(Volume(problem, divisible=True))
    assert [[sorted(group) for group in parts] for parts in groups] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 1], [2, 3], [4, 5], [6, 7]],
    ]


def test_equal_links_make_no_groups():
    """On a ring with equal links, ranks are the only groups."""
    assert cuts._fast_groups(Volume(problem_of(ring(6), collectives.allreduce(6)), divisible=True)) == []
