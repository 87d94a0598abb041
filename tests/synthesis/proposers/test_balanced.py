"""The backend "dimension-balanced": orders of dimensions by linear program or greedily, and the rate reached."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import taccl
from taccl import dimensions, make_problem, synthesize
from taccl._internal.deadline import NEVER, Deadline
from taccl.analysis.verification.verify import verify
from taccl.baselines.dimension_sends import translations_along
from taccl.baselines.hierarchical import level_orders
from taccl.cli import main
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.explore import plan as planning
from taccl.explore.plan_search import PlanSearch
from taccl.problem.collectives import make, together
from taccl.sketch.apply import in_groups
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.balanced import choose_num_chunks, choose_orders, cut_balanced
from taccl.synthesis.proposers.finer import is_product, offer_balanced_first
from taccl.synthesis.search import Search
from taccl.topologies import parse
from tests.effort import AMPLE_S, brief_synthesis
from tests.fuzzing import MANY, thinned

#: Topologies of the benchmark that are products of dimensions.
PRODUCTS = (
    "switch16@100,switch64@100", "switch16@100,switch8@100,switch8@100",
    "switch4@100,switch8@100,switch8@100,switch4@100", "switch16@200,switch8@100,switch8@50",
    "switch8@100,switch16@25,switch8@12.5",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lp", "greedy"])
@pytest.mark.parametrize("dims", PRODUCTS)
def test_most_of_the_optimum_is_reached(dims, policy):
    """1 GB in 64 chunks over 1,024 ranks reaches 95 % of the linear program's rate, latency included."""
    result = taccl.synthesize_implicit(
        f"multidim:{dims}", "allreduce", chunk_size=-(-(10**9) // 65536), chunks_per_rank=64,
        backend="dimension-balanced", policy=policy,
    )  # fmt: skip
    assert result.dimension_bound.bound_us >= 0.95 * result.finish_us
    assert result.bound.bound_us <= result.finish_us and result.dimension_bound.check()
    assert result.to_dict()["dimension_bound_us"] == result.dimension_bound.bound_us


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 1] if MANY else [0])
@pytest.mark.parametrize(
    ("number", "dims"),
    thinned(enumerate(["ring8@100,switch6@50", "fully-connected5@200,ring7@50,switch3@25", "ring4@100,ring4@100,ring4@100",
     "ring16@100,ring4@25", "fully-connected8@400,switch16@50",
     # Networks in which slow dimensions limit, and phases are few.
     "switch8@200,ring16@12.5,ring4@200,fully-connected9@400", "switch2@25,ring2@50,switch2@100,ring5@25",
     "switch13@50,switch7@25,switch2@25,switch14@200", "fully-connected5@400,switch5@12.5,ring12@400"])),
)  # fmt: skip
def test_rings_and_groups_reach_95_percent_too(number, dims, turn):
    """Networks of rings and of fully connected groups reach 95 % of the linear program's rate, too.

    Networks alternate between the two policies for the order of dimensions; TACCL_MANY=1 tests both on each.
    """
    policy = ("lp", "greedy")[(number + turn) % 2]
    host = taccl.dimensions(f"multidim:{dims}")
    result = taccl.synthesize_implicit(
        f"multidim:{dims}", "allreduce", chunk_size=-(-(10**9) // (64 * host.num_ranks)), chunks_per_rank=64,
        backend="dimension-balanced", policy=policy,
    )  # fmt: skip
    assert result.dimension_bound.bound_us >= 0.95 * result.finish_us


def test_shares_are_rounded_to_the_least_load():
    """On 16 x 64, 64 chunks are divided between the two orders so that the busiest dimension has least load."""
    dims = taccl.dimensions("multidim:switch16@100,switch64@100")
    orders = choose_orders(dims, "allreduce", 64)
    loads = np.array([dims.loads_us_per_mb(order) for order in ((0, 1), (1, 0))], float)
    count = orders.count((0, 1))
    busiest = [max(n * loads[0] + (64 - n) * loads[1]) for n in range(65)]
    assert busiest[count] == min(busiest)


def test_few_chunks_still_go_along_all_dimensions():
    """One chunk has one order of the dimensions; two chunks travel in both orders."""
    dims = taccl.dimensions("multidim:switch4@100,switch4@100")
    for choose in (partial(choose_orders, collective="allreduce"), level_orders):
        assert len(choose(dims, num_chunks=1)) == 1
        assert sorted(choose(dims, num_chunks=2)) == [(0, 1), (1, 0)]


@pytest.mark.slow
def test_small_data_is_cut_into_few_chunks():
    """Latency-bound data stay in 1 chunk; 1 GB is cut into at least 16."""
    dims = taccl.dimensions("multidim:switch4@100,switch4@100")
    assert choose_num_chunks(dims, "allreduce", 64) == 1
    dims = taccl.dimensions("multidim:switch16@100,switch64@100")
    assert choose_num_chunks(dims, "allreduce", 10**9) >= 16


@pytest.mark.slow
def test_chunks_are_limited_by_transfers():
    """16 MB over two rings of 4 is cut into 128 chunks; at most 10,000 transfers leave 16 chunks."""
    problem = taccl.make_problem(parse("multidim:ring4@100,ring4@25"), "allreduce", size_bytes=16_000_000)
    problem = replace(problem, chunks_open=True)
    assert cut_balanced(problem, policy="lp").collective.chunks_per_rank == 128
    # Transfers are counted as 2 * chunks per rank * 16 * 16.
    few = cut_balanced(problem, policy="lp", most_transfers=10_000)
    assert few.collective.chunks_per_rank == 16


@pytest.mark.slow
@pytest.mark.parametrize("along", thinned([(1, 3), (1, 2)], every=2))
def test_groups_over_some_dimensions_finish_near_the_bound(along):
    """Groups on two of three dimensions finish within 2 % of the time that the rates of these allow.

    A rank of 16 sends and receives 2 * 15/16 of 16 MB at 125 GB/s: 240 us.
    """
    sizes = {1: "ring4@100", along[1]: "ring4@25"}
    topology = parse("multidim:" + ",".join(sizes.get(number, "switch2@50") for number in (1, 2, 3)))
    collective = in_groups(topology, "allreduce", along, where="test")
    problem = taccl.make_problem(topology, collective, size_bytes=16_000_000)
    found = brief_synthesis(problem, stop_when=lambda state: state.finish_us < 1.02 * 240)
    assert 240 < found.schedule.finish_us < 1.02 * 240


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce-scatter", "alltoall"])
def test_the_backend_on_a_problem(collective):
    """`synthesize` chooses an open number of chunks, verifies the schedule, and reports both bounds."""
    topology = parse("multidim:switch4@100,ring3@50")
    result = taccl.synthesize(
        make_problem(topology, collective, size_bytes=12 * 10**6), backend="dimension-balanced"
    )
    assert taccl.verify(result.schedule).ok and result.bound_us <= result.finish_us
    values = result.to_dict()
    assert values["dimension_bound_us"] <= values["finish_us"] and "dimension-balanced" in values["producer"]
    assert "along dimensions" in repr(result)


@pytest.mark.slow
def test_chunks_that_are_given_are_kept():
    """A given number of chunks, three per rank, is kept."""
    topology = parse("multidim:switch4@100,ring3@50")
    problem = make_problem(topology, "allreduce", size_bytes=12 * 10**6, chunks_per_rank=3)
    result = taccl.synthesize(problem, backend="dimension-balanced", policy="greedy")
    assert result.schedule.problem.collective.chunks_per_rank == 3


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            lambda: make_problem(taccl.topologies.ndv2(2), "allreduce", size_bytes=10**6),
            "no product of dimensions",
        ),
        (lambda: make_problem(parse("torus:3x3"), "broadcast", size_bytes=10**6, root=0), "found broadcast"),
        (lambda: make_problem(parse("mesh:3x3"), "alltoall", size_bytes=10**6), "found a line"),
    ],
)
def test_what_does_not_go_along_dimensions_is_refused(problem, said):
    """Problems that cannot be scheduled one dimension after another are refused, with an error of one
    sentence."""
    with pytest.raises(CollectiveError, match=said):
        taccl.synthesize(problem(), backend="dimension-balanced")


@pytest.mark.slow
def test_a_sketch_that_forbids_the_algorithm_is_named():
    """If a sketch removes a link that the algorithm needs, the error names the sketch."""
    problem = make_problem(parse("torus:3x3"), "allreduce", size_bytes=10**6)
    links = frozenset(range(1, len(problem.topology.links)))
    with pytest.raises(InputError, match="the sketch forbids sends along dimensions"):
        taccl.synthesize(problem.with_clauses(links_allowed=links), backend="dimension-balanced")


def test_too_many_transfers_are_left_to_implicit_schedules(monkeypatch):
    """Above the limit on transfers the error names `synthesize_implicit`, which lists none."""
    monkeypatch.setattr("taccl.synthesis.proposers.balanced.MOST_TRANSFERS", 500)
    problem = make_problem(parse("torus:4x4"), "allreduce", size_bytes=10**6, chunks_per_rank=1)
    with pytest.raises(CollectiveError, match="use synthesize_implicit"):
        taccl.synthesize(problem, backend="dimension-balanced")


def test_a_dgx_with_rails_has_an_implicit_schedule():
    """A DGX with rails is a product of GPUs and nodes and has an implicit schedule."""
    dims = taccl.dimensions(taccl.topologies.dgx_h100(3))
    result = taccl.synthesize_implicit(dims.host, "allreduce", chunk_size="1MB", backend="dimension-balanced")
    assert result.finish_us >= result.bound.bound_us
    with pytest.raises(TopologyError, match="found a line"):
        translations_along(taccl.dimensions("mesh:3x3"))


@pytest.mark.slow
def test_the_portfolio_tries_balanced_schedules():
    """On a product with enough chunks the general search finishes no later than the balanced schedule."""
    topology = parse("multidim:switch3@100,switch3@100,switch2@100")
    problem = make_problem(topology, "allreduce", size_bytes=18 * 10**6, chunks_per_rank=6)
    balanced = taccl.synthesize(problem, backend="dimension-balanced")
    found = brief_synthesis(problem, backend="greedy")
    assert found.finish_us <= balanced.finish_us


@pytest.mark.slow
def test_suggestions_go_along_dimensions_where_that_is_sooner():
    """On a mesh with unequal axes the best suggested sketch has a dimension-balanced schedule."""
    topology = taccl.topologies.mesh(4, 4, bandwidth_gb_per_s=[100, 25], alpha_meaning="pipelined")
    found = taccl.suggest_sketches(topology, "allreduce", "16MB", chunks_per_rank=8, time_limit_s=AMPLE_S)
    assert found[0].schedule.producer.startswith("dimension-balanced") and taccl.verify(found[0].schedule).ok


@pytest.mark.slow
def test_plans_go_along_dimensions(monkeypatch):
    """The baseline balanced over dimensions is a candidate in a plan."""
    made = []
    balanced = taccl.baselines.BASELINES["dimension-balanced"]
    spy = lambda problem, cut: made.append(balanced(problem, cut=cut)) or made[-1]  # noqa: E731
    monkeypatch.setitem(taccl.baselines.BASELINES, "dimension-balanced", spy)
    topology, sizes = parse("multidim:switch3@100,switch2@100"), [10**6]
    search = PlanSearch(sizes, lambda _: None, [topology])
    search.add_baselines([("no sketch", planning._problems(topology, "allreduce", {}, None, sizes))], NEVER)
    assert made and all(taccl.verify(each).ok for each in made)


@pytest.mark.slow
def test_the_command_line(capsys):
    """The command line schedules 1,024 ranks, as in the documentation, and reaches 95 % of the bound."""
    words = "synthesize --topology multidim:switch16@100,switch64@100 --collective allreduce --size 1GB"
    assert main([*words.split(), "--backend", "dimension-balanced", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["dimension_bound_us"] / values["finish_us"] >= 0.95 and values["verified"]
    assert Fraction(values["bound_us"]) <= Fraction(values["finish_us"])


@pytest.mark.parametrize(
    "topology", ["multidim:switch16", "multidim:swich4@5", "multidim:ring4@0", "multidim:ring0@5"]
)
def test_the_command_line_refuses_what_is_no_product(topology, capsys):
    """A topology that is not a product is refused: one sentence, exit code 2 or 65, nothing on stdout."""
    words = ["synthesize", "--topology", topology, "--collective", "allreduce", "--size", "1MB"]
    code = main([*words, "--backend", "dimension-balanced"])
    out = capsys.readouterr()
    assert code not in (0, 70) and not out.out and "multidim" in out.err


NETWORK = "multidim:ring4@100,switch2@50,switch2@25"


def of_groups(groups, name="allreduce", network=NETWORK):
    """A collective of 1 MB in each process group."""
    topology = parse(network)
    inside = [make(name, len(ranks)).among(ranks, num_ranks=topology.num_ranks) for ranks in groups]
    return make_problem(topology, together(inside), size_bytes=10**6)


def test_groups_of_some_dimensions():
    """Groups along some dimensions hold the ranks that agree in all other dimensions.

    Along dimensions 0 and 2 these agree in dimension 1, a switch of two with stride 4.
    """
    assert dimensions(NETWORK).groups([0, 2]) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    with pytest.raises(TopologyError, match="along: found \\[3\\]; expected different dimensions of 0 to 2"):
        dimensions(NETWORK).groups([3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_groups_are_balanced_at_once(name):
    """Two groups at once have the finish and bound of one group alone on a network of the groups' dimensions."""
    found = synthesize(of_groups(dimensions(NETWORK).groups([0, 2]), name), backend="dimension-balanced")
    alone = parse("multidim:ring4@100,switch2@25")
    other = synthesize(make_problem(alone, name, size_bytes=10**6), backend="dimension-balanced")
    assert verify(found.schedule).ok
    assert found.finish_us == other.finish_us
    assert found.dimension_bound.bound_us == other.dimension_bound.bound_us


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([(0, 1, 2, 3), (0, 1, 2, 3)], "groups collide along their dimensions"),
        ([(0, 1, 6)], "groups"),
        ([(1, 0, 2, 3)], "of ranks in ascending order"),
    ],
    ids=["shared", "no product", "order"],
)
def test_groups_that_do_not_go_along_dimensions(groups, said):
    """Groups that share links or are not a product of dimensions are refused with the reason."""
    with pytest.raises(CollectiveError, match=said):
        synthesize(of_groups(groups), backend="dimension-balanced")


@pytest.mark.slow
def test_the_portfolio_begins_with_balanced_groups():
    """The portfolio begins with groups balanced along their dimensions.

    The groups along dimensions 1 and 3 of three sum 16 MB each, at the same time, in 251.5 us; other
    baselines take 683 us or more.
    """
    topology = parse("multidim:ring4@100,switch2@50,ring4@25")
    groups = dimensions(topology).groups([0, 2])
    several = together([make("allreduce", 16).among(ranks, num_ranks=32) for ranks in groups])
    problem = make_problem(topology, several, size_bytes=16_000_000)

    def stop(state):
        return state.finish_us is not None and state.finish_us < 300

    result = synthesize(problem, time_limit_s=300, stop_when=stop)
    assert result.finish_us <= 251.5
    assert next(each for each in result.stages if each.finish_us).name == "groups over dimensions"


def test_balanced_dimensions_are_proposed_before_other_baselines():
    """Chunks balanced over a switch and a ring sum 8 MB of 32 ranks in 104.4 us; multiplying takes 140.5 us."""
    problem = make_problem(parse("multidim:switch8@100,ring4@50"), "allreduce", size_bytes=8_000_000)
    assert is_product(problem)
    found = offer_balanced_first(
        Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    )
    assert found.best.finish_us <= 104.42
    assert verify(found.best).ok


@pytest.mark.parametrize(
    "topology", [parse("torus:3x4"), parse("mesh:3x4"), parse("ring:5"), taccl.topologies.dgx_h100(2)]
)
def test_tori_and_machines_are_not_balanced_first(topology):
    """On tori, meshes and machines of several nodes, other baselines usually finish first."""
    assert not is_product(make_problem(topology, "allreduce", size_bytes=8_000_000))
