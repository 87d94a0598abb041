"""``--collective exchange --servers R-R``: workers push to servers, which add up, and pull the sums."""

from __future__ import annotations

import pytest

from taccl.cli.command import build_parser
from taccl.cli.problems import problem_from_options
from taccl.errors import InputError

WORDS = ["synthesize", "--topology", "star:5", "--collective", "exchange"]


def problem_of(*words):
    """Problem that the given options describe."""
    return problem_from_options(build_parser(WORDS[0]).parse_args([*WORDS, *words]))


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
