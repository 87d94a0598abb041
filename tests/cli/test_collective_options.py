"""Options of collectives: servers of an exchange, groups along dimensions, bytes for each pair of ranks."""

import json

import pytest

import taccl
from taccl._internal.deadline import NEVER
from taccl.cli.command import build_parser
from taccl.cli.problems import collective_of, problem_from_options
from taccl.errors import InputError

WORDS = ["synthesize", "--topology", "star:5", "--collective", "exchange"]


def problem_of(*words, start=WORDS):
    """Problem that the given options describe, without a time limit."""
    options = build_parser(start[0]).parse_args([*start, *words])
    options.deadline = NEVER
    return problem_from_options(options)


def test_ranks_that_do_not_serve_contribute():
    """Ranks 3 and 4 serve, and ranks 0 to 2 contribute; the number of chunks stays open."""
    problem = problem_of("--servers", "3-4", "--size", "1MB", "--update-us-per-mb", "2")
    collective = problem.collective
    assert {chunk.root for chunk in collective.chunks} == {3, 4}
    assert {chunk.origins for chunk in collective.chunks} == {(0, 1, 2)}
    assert (problem.chunks_open, collective.update_us_per_mb) == (True, 2)


def test_servers_contribute_if_every_rank_serves():
    """If every rank is a server, every rank also contributes."""
    assert problem_of("--servers", "0-4").collective.chunks[0].origins == (0, 1, 2, 3, 4)


def test_the_number_of_chunks_of_a_server():
    """``--chunks-per-rank`` is the number of chunks that each server keeps."""
    assert problem_of("--servers", "3-4", "--chunks-per-rank", "3").collective.num_chunks == 6


def test_layers_are_placed(tmp_path):
    """Two layers of a CSV file, cut into chunks of at most 2 MB, are spread evenly over two servers."""
    file = tmp_path / "layers.csv"
    file.write_text("name,bytes\nfirst,4MB\nsecond,2000000\nthird,2MB\n")
    problem = problem_of(
        "--servers", "3-4", "--worker-ranks", "0,1", "--layers", str(file), "--chunk-size", "2MB"
    )
    assert problem.chunk_bytes == (2_000_000,) * 4
    assert sorted(chunk.root for chunk in problem.collective.chunks) == [3, 3, 4, 4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "1MB"], "--servers: found none; exchange needs server ranks"),
        (["--servers", "4", "--root", "1"], "--root: exchange takes none"),
        (["--servers", "4", "--layers", "vgg-19", "--size", "1MB"], "--size: --layers sets it"),
        (
            ["--collective", "allgather", "--servers", "4"],
            "--servers: allgather does not take it, only exchange does",
        ),
    ],
)
def test_options_that_do_not_fit(words, said):
    """A missing option, or one of another collective, is named."""
    with pytest.raises(InputError, match=said):
        problem_of(*words)


@pytest.mark.slow
def test_a_schedule_of_an_exchange(run_json):
    """The schedule of an exchange takes no longer than all pushes to the server and the last chunk's pulls.

    The server sums 1 MB from 4 workers in 8 chunks. A chunk takes 4 pushes of 3 us each (with 0.5 us of
    latency), and the last chunk then 4 pulls.
    """
    code, found = run_json(*WORDS, "--servers", "4", "--size", "1MB", "--time-limit", "5")
    assert code == 0
    assert found["verified"]
    assert found["finish_us"] <= (8 + 1) * 4 * 3


WORDS_OF_GROUPS = ["synthesize", "--topology", "multidim:ring4@100,switch2@50", "--size", "1MB"]


def test_dimensions_are_counted_from_1():
    """Groups along dimension 2 are the ranks r and r + 4; the number of chunks stays open."""
    problem = problem_of("--collective", "allgather", "--along", "2", start=WORDS_OF_GROUPS)
    assert [group.ranks for group in problem.collective.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert (problem.chunks_open, problem.size_bytes) == (True, 10**6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--collective", "allgather", "--along", "3"], "--along: found 3; expected .* of 1 to 2"),
        (["--collective", "allgather", "--along", "1,1"], "--along: found 1,1; expected different"),
        (["--collective", "broadcast", "--along", "1", "--root", "0"], "--root: --along does not combine"),
        (["--collective", "exchange", "--along", "1"], "--along: exchange takes none"),
    ],
)
def test_options_that_do_not_fit_groups(words, said):
    """A dimension that does not exist, a root and an exchange are refused."""
    with pytest.raises(InputError, match=said):
        problem_of(*words, start=WORDS_OF_GROUPS)


def test_a_plan_takes_no_groups_of_sketches(tmp_path):
    """`taccl plan`, which takes no sketch, refuses the name of a group, and does not advise a sketch."""
    words = ["plan", "--topology", "ring:4", "--collective", "allreduce", "--along", "x", "-o", str(tmp_path)]
    options = build_parser("plan").parse_args(words)
    with pytest.raises(InputError, match="--along: found 'x'; expected dimensions such as 1,3$"):
        collective_of(options, taccl.topologies.ring(4))


WORDS_OF_MATRIX = ["--topology", "ring:3", "--collective", "alltoallv"]


@pytest.fixture
def matrix(tmp_path):
    """Path of a matrix with 1 MB from rank 0 to rank 1, and 10 bytes back."""
    path = tmp_path / "sizes.csv"
    path.write_text("0,1MB,0\n10,0,0\n0,0,0\n")
    return path


@pytest.mark.parametrize(
    ("words", "bound_us"),
    [
        # 1 MB has two paths to rank 1 at 20 us/MB: one link of 0.5 us, and one behind another such link.
        # (T - 0.5) / 20 + (T - 1) / 20 = 1 gives T = 10.75 us.
        (["FILE"], 10.75),
        # Each rank sends 2 MB, the mean, to each of the two others over a link of its own.
        (["zipf:0", "--size", "4MB"], 40.5),
    ],
)
def test_the_bound_of_a_matrix(run_json, matrix, words, bound_us):
    """The bound of a size matrix counts all paths of a pair; `--size` is the mean that a rank sends of a skew."""
    words = [matrix if word == "FILE" else word for word in words]
    code, found = run_json("bound", *WORDS_OF_MATRIX, "--matrix", *words)
    assert (code, found["prices"]["divisible"]["bound_us"]) == (0, bound_us)


def test_a_skew_needs_two_ranks(run):
    """A skew for one rank is refused by the name of its option."""
    code, _, err = run("bound", *WORDS_OF_MATRIX, "--matrix", "zipf:1", "--ranks", "0")
    assert (code, "--matrix: found a skew for 1 rank; expected two" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["FILE"], ["hot:3", "--size", "1MB"]], ids=["file", "skew"])
def test_a_comparison_of_a_matrix(run_json, matrix, words):
    """``taccl compare`` accepts a matrix."""
    words = [matrix if word == "FILE" else word for word in words]
    common = ["--backends", "greedy", "--time-limit", "0.3", "--no-cache"]
    code, found = run_json("compare", *WORDS_OF_MATRIX, "--matrix", *words, *common)
    assert code == 0
    assert [row["collective"] for row in found["rows"]] == ["alltoallv"]
    assert found["rows"][0]["verified"]


@pytest.mark.slow
def test_a_plan_of_a_matrix(run, matrix):
    """``taccl plan`` scales all pairs to a size, in chunks of equal size, as programs need; a note says
    so.
    """
    words = ["--matrix", matrix, "--sizes", "1MB,2MB", "--time-limit", "4", "--runtime", "msccl", "--json"]
    code, out, err = run("plan", *WORDS_OF_MATRIX, *words)
    assert code == 0
    assert "64 at the busiest rank for 1MB; pairs are rounded up to whole chunks" in err
    found = json.loads(out)
    assert found["ranges"][-1]["max_bytes"] == 2 * 10**6


@pytest.mark.slow
def test_a_schedule_of_a_matrix(run_json, matrix, tmp_path):
    """The schedule of a size matrix has chunks of at most 100 KB for each pair, and verifies."""
    path = tmp_path / "schedule.json"
    words = ["--matrix", matrix, "--chunk-size", "100KB", "--time-limit", "2", "-o", path]
    assert run_json("synthesize", *WORDS_OF_MATRIX, *words)[0] == 0
    sizes = taccl.load(path).problem.chunk_bytes
    assert sorted(sizes) == [10, *[100_000] * 10]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            WORDS_OF_MATRIX,
            "--matrix: found none; alltoallv takes its sizes from a CSV or .npy file, or a skew such as",
        ),
        ([*WORDS_OF_MATRIX, "--matrix", "zipf:x"], "skew: found 'zipf:x'; expected zipf:S"),
        (
            [*WORDS_OF_MATRIX[:-1], "allgather", "--matrix", "FILE"],
            "--matrix: allgather takes none, only alltoallv does",
        ),
        (
            [*WORDS_OF_MATRIX, "--matrix", "FILE", "--size", "1MB"],
            "--size: alltoallv takes none; leave it out",
        ),
        (
            ["--topology", "ring:4", *WORDS_OF_MATRIX[2:], "--matrix", "FILE"],
            "found a matrix of 3 ranks; expected one of 4",
        ),
    ],
    ids=["no matrix", "no skew", "another collective", "a size", "another number of ranks"],
)
def test_what_does_not_fit_is_refused(run, matrix, words, said):
    """A matrix that does not fit is refused in one sentence that names the option."""
    code, _, err = run("bound", *(matrix if word == "FILE" else word for word in words))
    assert code != 0
    assert said in err
