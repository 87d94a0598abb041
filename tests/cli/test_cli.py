"""The command line: its output on stdout and stderr, and its exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import taccl
import taccl.formats.saved  # it keeps its own `write_whole`, which a test replaces elsewhere
from taccl import cli, errors
from taccl.cli.command import build_parser
from taccl.cli.verbs import VERBS
from taccl.solvers import registry
from tests.arguments import arguments_for
from tests.cli.words import SKETCH, SMALL, in_process
from tests.foreign import OURS

RING = ("--topology", "ring:4")
KEYS = {
    "finish_us", "bound_us", "gap", "algbw_gb_per_s", "busbw_gb_per_s", "backend", "verified", "num_ranks",
    "num_chunks", "num_transfers", "stages", "seconds",
}  # fmt: skip


class TestSynthesize:
    """``taccl synthesize``."""

    @pytest.mark.slow
    def test_summary(self, run):
        """The text of a synthesis has finish, bound and gap; in a pipe nothing is on stderr."""
        code, out, err = run("synthesize", *SMALL, "--backend", "greedy")
        assert (code, err) == (0, "")
        assert out.startswith("allgather on ring:4, 4KB\n  finish")
        assert "bound" in out
        assert "gap" in out

    @pytest.mark.slow
    def test_a_person_does_not_wait_for_the_digest(self, run, monkeypatch):
        """The digest, which is slow for many transfers, is computed for ``--json`` only."""
        monkeypatch.setattr(taccl.Schedule, "digest", lambda _: pytest.fail("made"))
        assert run("synthesize", *SMALL, "--backend", "greedy")[0] == 0

    @pytest.mark.slow
    def test_json(self, run_json):
        """The JSON object has every documented figure."""
        code, values = run_json("synthesize", *SMALL, "--backend", "greedy")
        assert code == 0
        assert set(values) >= KEYS
        assert {"name", "solver", "status", "seconds", "bound"} <= set(values["stages"][0])
        assert values["stages"][0]["name"] == "start" and values["stages"][0]["seconds"] > 0
        assert values["finish_us"] >= values["bound_us"]

    @pytest.mark.slow
    def test_output_verifies(self, run, tmp_path):
        """``taccl verify`` accepts the file that ``-o`` writes."""
        path = tmp_path / "out.json"
        assert run("synthesize", *SMALL, "--backend", "greedy", "-o", path)[0] == 0
        assert run("verify", path)[0] == 0

    @pytest.mark.slow
    def test_shipped_sketch(self, run_json):
        """A sketch may be given by its shipped name."""
        name = "ndv2/sk1-n1"
        assert name in taccl.shipped_sketches()
        words = ("synthesize", name, "--collective", "allgather", "--size", "16MB", "--backend", "greedy")
        code, values = run_json(*words, "--time-limit", 2)
        assert (code, values["verified"]) == (0, True)

    @pytest.mark.slow
    def test_upstream_files(self, run_json, upstream):
        """A topology and a sketch of the published tool use its cost model, in which GB/s are unknown."""
        code, values = run_json(
            "synthesize", upstream / "sketch" / "hub-n2.json", "--topology",
            upstream / "topo" / "hub-64KB.json", "--collective", "allgather", "--backend", "greedy",
            "--time-limit", 60,
        )  # fmt: skip
        assert (code, values["cost_model"], values["algbw_gb_per_s"]) == (0, "upstream", None)
        # Two chunks cross to the other node in sequence, 7.5 + 12 us each, and one more hop there takes 5 us.
        assert values["bound_us"] == 44

    def test_options_are_passed_on(self, run, monkeypatch):
        """Every option of the search is passed on in its unit."""
        passed = {}

        def fake(problem, **options):
            passed.update(options)
            raise errors.NoSolutionError("nothing found")

        monkeypatch.setattr(taccl, "synthesize", fake)
        code, out, err = run(
            "synthesize", *SMALL, "--backend", "highs", "--time-limit", "2500ms", "--threads", 2, "--seed", 7,
            "--memory-limit", "4GB", "--until-gap", "2%",
        )  # fmt: skip
        assert (code, out, err) == (1, "", "taccl: error: nothing found\n")
        assert 0 < passed.pop("time_limit_s") <= 2.5  # less what came before, and the time for the answer
        assert passed == {
            "backend": "highs", "threads": 2, "seed": 7, "memory_limit_mb": 4000, "log": False,
            "progress": None, "sketch": "auto", "keep": "schedule", "spill_dir": None, "to_file": False,
            "parameters": taccl.SearchParameters(), "policy": "lp", "in_network": "auto", "idle_share": None,
            "until_gap": "2%", "start": None,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            pytest.param("old.json", "exists; pass --overwrite", id="a file that exists"),
            pytest.param("none/out.json", "there is no folder", id="a folder that is missing"),
            pytest.param("x" * 300, "", id="a long name"),
            pytest.param("", "", id="no name"),
            pytest.param("/proc/x.json", "", id="a folder that takes no files"),
            pytest.param(".", "", id="a folder"),
        ],
    )
    def test_unwritable_output_is_refused_first(self, run, monkeypatch, tmp_path, name, said):
        """An unwritable output is refused before any work, and existing files stay unchanged."""
        monkeypatch.setattr(taccl, "synthesize", lambda *_, **__: pytest.fail("the work began"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "old.json").write_text("old")
        code, _, err = run("synthesize", *SMALL, "-o", name)
        assert (code, err.count("\n"), said in err) == (2, 1, True)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.json": "old"}

    @pytest.mark.slow
    def test_result_of_a_file_that_failed(self, run, run_json, tmp_path, monkeypatch):
        """If writing the file fails at the end, the result is shown nevertheless, with exit code 2."""

        def full(*_, **__):
            raise errors.InputError("the disk is full", where="out.json")

        monkeypatch.setattr("taccl.formats.files.write_whole", full)
        words = ("synthesize", *SMALL, "--backend", "greedy", "-o", tmp_path / "out.json")
        code, out, err = run(*words)
        assert (code, err) == (2, "taccl: error: out.json: the disk is full\n")
        assert "finish" in out
        code, values = run_json(*words)
        assert (code, values["error"], values["exit_code"]) == (2, "the disk is full", 2)
        assert set(values) >= KEYS

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
    def test_ctrl_c(self, tmp_path):
        """Ctrl-C in a long search gives the best schedule so far, or exit code 130, without traceback."""
        command = [
            sys.executable, "-m", "taccl", "synthesize", "--topology", "dgx2", "--nodes", "2", "--collective",
            "allreduce", "--size", "1MB", "--time-limit", "60", "--json",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        assert "Traceback" not in err
        assert process.returncode in (0, 130)
        assert process.returncode == 130 or json.loads(out)["interrupted"]

    @pytest.mark.slow
    def test_ctrl_c_within_exec(self):
        """Ctrl-C in code run by ``exec``, as data classes use it on import, also ends with exit code 130."""
        text = (
            "import sys\n"
            "import taccl.cli.command as command\n"
            "from taccl.cli import main\n"
            "def run(*_, **__):\n"
            "    exec('import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass')\n"
            "command.run = run\n"
            "sys.exit(main())\n"
        )
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (130, "")


class TestVerify:
    """``taccl verify``."""

    @pytest.mark.parametrize(
        ("name", "code", "word"),
        [
            (
                "allgather-4-direct",
                0,
                "ok: a program of 24 steps on 4 ranks, for all sizes from 0B to 128MiB",
            ),
            ("allgather-3-deadlock", 1, "deadlock: "),
        ],
    )
    def test_program(self, run, name, code, word):
        """A program is run: a correct one passes; one that deadlocks is refused with its cycle."""
        found, out, _ = run("verify", OURS / "msccl-xml" / f"{name}.xml")
        assert found == code
        assert word in out

    def test_valid(self, run, saved):
        """For a valid file the output names the file and the checks."""
        code, out, _ = run("verify", saved)
        assert code == 0
        assert out == f"{saved}: ok: 12 transfers in 12 sends, finish 1.04 us\n"

    def test_invalid(self, run, run_json, tmp_path):
        """For an invalid schedule the output lists its violations, with exit code 1."""
        from taccl.schedule.schedule import make_schedule

        problem = taccl.make_problem(
            taccl.topologies.ring(4), taccl.collectives.allgather(4), chunk_bytes=1000
        )
        path = tmp_path / "empty.json"
        nothing = []
        taccl.save(make_schedule(problem, chunk=nothing, link=nothing, start=nothing, end=nothing), path)
        code, out, err = run("verify", path)
        assert code == 1
        assert out.count("postcondition") == 12
        assert err == f"taccl: error: {path}: the schedule breaks 12 rules\n"
        code, values = run_json("verify", path)
        assert (code, values["ok"], len(values["violations"])) == (1, False, 12)

    @pytest.mark.parametrize("verb", ["verify", "show"])
    @pytest.mark.parametrize("field", ["gap", "start"])
    def test_edited_file(self, run, saved, verb, field):
        """An edited schedule file is reported as bad input; it is not a failed check, and is not shown as valid."""
        document = json.loads(saved.read_text())
        if field == "gap":
            document["result"]["gap"] = 0.5
        else:
            document["transfers"]["start"][0] += 1
        saved.write_text(json.dumps(document))
        code, out, err = run(verb, saved)
        assert (code, out) == (2, "")
        assert "digest" in err and "was edited after it was saved" in err

    def test_upstream_algorithms(self, run_json, upstream):
        """Algorithms of the published tool are verified, too."""
        path = min((upstream / "algorithm").rglob("*.json"), key=lambda each: each.stat().st_size)
        code, values = run_json("verify", path)
        assert code == (0 if values["ok"] else 1)
        assert values["num_transfers"] > 0

    @pytest.mark.parametrize(
        ("verb", "name", "content", "word"),
        [
            pytest.param(
                "verify", "a.json", b"", "the file is empty; save it again, or check the path", id="empty"
            ),
            pytest.param("verify", "a.json", b"\0\1\2", "binary", id="binary"),
            pytest.param("verify", "a.json", b"{", "JSON", id="cut"),
            pytest.param("verify", "a.json", b'{"a": 1}', "found JSON with fields 'a'", id="other"),
            pytest.param("verify", "a.json", b"\xff\xfe{\0", "save it as UTF-8", id="UTF-16"),
            pytest.param("verify", "a.json", b'{"a":' * 5000, "nested too deeply", id="deep"),
            pytest.param(
                "show",
                "a.json",
                b'{"nnodes": ' + b"9" * 5000 + b"}",
                "found a number that cannot be read",
                id="JSON",
            ),
            pytest.param(
                "show", "a.toml", b"schema = " + b"9" * 5000, "found a number that cannot be read", id="TOML"
            ),
        ],
    )
    def test_other_files(self, run, tmp_path, verb, name, content, word):
        """A file that holds nothing to verify or show is refused in one sentence."""
        path = tmp_path / name
        path.write_bytes(content)
        code, out, err = run(verb, path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"taccl: error: {path}")
        assert word in err


class TestShow:
    """``taccl show``."""

    def test_schedule(self, run, saved):
        """``taccl show`` prints a schedule's figures and first transfers."""
        code, out, _ = run("show", saved, "--transfers", 2)
        assert code == 0
        assert "finish    1.04 us" in out
        assert "... and 10 more" in out

    def test_constants_that_a_file_replaces(self, run_json, tmp_path):
        """A constant that a topology file replaces is shown with its value, as given by the user."""
        path = tmp_path / "slow.toml"
        path.write_text('schema = 1\nname = "slow"\nmachine = "ndv2"\n[constants]\nnvlink_alpha_us = 2.5\n')
        code, values = run_json("show", path)
        assert code == 0
        assert values["constants"]["nvlink_alpha_us"] == {"value": 2.5, "source": "given by the user"}
        assert "user" not in values["constants"]["nvlink_beta_us_per_mb"]["source"]

    def test_machine_constants_have_sources(self, run_json):
        """Every constant of a machine is shown with its source."""
        code, values = run_json("show", "ndv2", "--profile", "nominal")
        assert (code, values["kind"]) == (0, "topology")
        assert values["constants"]
        assert all(constant["source"] for constant in values["constants"].values())

    def test_fabric(self, run):
        """``taccl show`` lists a fabric's links by cost."""
        code, out, _ = run("show", "torus:4x4")
        assert code == 0
        assert "64     inside nodes" in out

    @pytest.mark.parametrize(
        ("text", "kind", "name"),
        [
            ('schema = 1\nfabric = "ring:5"\n', "topology", "ring:5"),
            ('schema = 1\nmachine = "ndv2"\nnodes = 2\n', "topology", "ndv2 x2"),
            (SKETCH, "sketch", "test sketch"),
        ],
        ids=["a fabric", "a machine and no more", "a sketch"],
    )
    def test_a_file_is_known_by_its_content(self, run_json, tmp_path, text, kind, name):
        """Topologies and sketches, which share an ending, are told apart by their fields."""
        path = tmp_path / "mine.toml"
        path.write_text(text)
        code, values = run_json("show", path)
        assert (code, values["kind"], values["name"]) == (0, kind, name)

    @pytest.mark.slow
    def test_upstream_files(self, run_json, upstream):
        """Each file of the published tool is shown as what it is: a topology or a sketch."""
        for path in sorted((upstream / "sketch").iterdir()):
            assert run_json("show", path)[1]["kind"] == "sketch"
        for path in sorted((upstream / "topo").iterdir()):
            assert run_json("show", path)[1]["kind"] == "topology"

    def test_rows_are_a_number(self, run, saved):
        """``--rows`` is a number of rows, or -1 for all."""
        assert "expected a number of rows" in run("show", saved, "--transfers", "x")[2]
        code, out, _ = run("show", saved, "--transfers", "-1")
        assert (code, "... and" in out) == (0, False)
        assert len(out.splitlines()) == 12 + len(run("show", saved, "--transfers", 0)[1].splitlines()) + 2


class TestBaseline:
    """``taccl baseline``."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("topology", "is_sooner"),
        [("dgx1", True), ("fully-connected:4", False)],
        ids=["rings apart", "all linked"],
    )
    def test_best_says_that_nccl_is_sooner(self, run, topology, is_sooner):
        """If nccl, which best leaves out, is modelled to be faster, a note gives its time."""
        code, out, _ = run("baseline", "best", topology, "--collective", "allgather", "--size", "64MB")
        assert (code, "best leaves out nccl, whose modelled time is " in out) == (0, is_sooner)

    @pytest.mark.parametrize("name", ["best", "ring"])
    def test_the_fastest_by_the_limit_is_the_answer(self, run, monkeypatch, name):
        """Once the time is spent, the fastest baseline so far is returned, with a message."""
        monkeypatch.setattr("taccl.cli.verbs.baseline._SCHEDULE_SHARE", 0.0)
        code, out, err = run("baseline", name, *SMALL)
        assert (code, "verified" in out) == (0, True)
        assert "stopped by the time limit; this is the fastest baseline so far" in err

    def test_a_baseline_ends_at_the_limit_with_the_form_that_is_complete(self, run, monkeypatch):
        """A baseline whose further forms take long is returned in its first form once the time is spent."""
        ring = taccl.baselines.BASELINES["ring"]

        def lingering(*args, **options):
            found, until_s = ring(*args, **options), time.monotonic() + 60
            while time.monotonic() < until_s:
                time.sleep(0.001)
            return found

        monkeypatch.setattr("taccl.cli.verbs.baseline._SCHEDULE_SHARE", 0.0)
        monkeypatch.setitem(taccl.baselines.BASELINES, "ring", lingering)
        code, out, err = run("baseline", "ring", *SMALL)
        assert (code, "verified" in out, "stopped by the time limit" in err) == (0, True, True)

    @pytest.mark.parametrize("name", ["best", "ring"])
    def test_ctrl_c_keeps_the_fastest_baseline_so_far(self, run, monkeypatch, name):
        """Ctrl-C in the second baseline, or in the second form of one, returns the fastest one so far."""
        baselines, calls = taccl.baselines.BASELINES, []

        def interrupted(baseline):
            def made(*args, **options):
                calls.append(baseline)
                if len(calls) == 2:
                    raise KeyboardInterrupt
                return baseline(*args, **options)

            return made

        for each, baseline in list(baselines.items()):
            monkeypatch.setitem(baselines, each, interrupted(baseline))
        code, out, err = run("baseline", name, *SMALL)
        assert (code, "verified" in out) == (0, True)
        assert "stopped by Ctrl-C; this is the fastest baseline so far" in err

    @pytest.mark.parametrize("name", ["best", "ring"])
    def test_a_first_baseline_is_returned_after_the_limit(self, run, name):
        """If no baseline ends within the limit, the first one is completed, with the bound of its latency."""
        code, out, err = run("baseline", name, *SMALL, "--time-limit", "0.000001")
        assert (code, "verified" in out, "stopped by the time limit" in err) == (0, True, True)

    def test_without_nccl_by_the_limit_more_time_is_asked_for(self, run):
        """If NCCL's algorithm is not found within the limit, the exit code is 1, and more time is advised."""
        code, _, err = run("baseline", "nccl", *SMALL, "--time-limit", "0.000001")
        assert (code, "give more time" in err) == (1, True)

    def test_without_nccl_by_the_limit_a_machine_has_its_predicted_time(self, run, run_json, tmp_path):
        """If time ends before NCCL's channels are found on a machine by name, its time is predicted.

        A file needs a schedule, so with ``--output`` more time is advised.
        """
        words = ("baseline", "nccl", "dgx-h100", "--collective", "allreduce", "--size", "1MB")
        code, values = run_json(*words, "--time-limit", "0.000001")
        expected = taccl.predict("dgx-h100", "allreduce", "1MB")
        found = values["predicted_us"], values["algorithm"], values["protocol"], values["finish_us"]
        assert (code, *found) == (0, expected.time_us, expected.algorithm, expected.protocol, None)
        assert "no schedule: NCCL's channels were not found in time" in values["notes"][0]
        code, _, err = run(*words, "--time-limit", "0.000001", "-o", tmp_path / "nccl.json")
        assert (code, "give more time" in err) == (1, True)

    def test_json(self, run_json):
        """The JSON object of a baseline has the figures of a synthesized result."""
        code, values = run_json("baseline", "ring", *SMALL)
        # A chunk needs two hops to the opposite rank, of 0.5 us + 1000 B / (50 GB/s) each.
        assert (code, values["finish_us"], values["gap_in_chunks"]) == (0, 1.04, 0)
        # The bound over all chunkings is 1.03 us: half of 3000 B come over each of two links, in two sends.
        assert values["gap"] == values["gap_over_all_chunkings"] == pytest.approx(1 / 103)
        assert set(values) >= KEYS

    @pytest.mark.parametrize("name", ["ring", pytest.param("best", marks=pytest.mark.slow), "nccl"])
    def test_a_given_number_of_chunks_is_kept(self, run_json, name):
        """Baselines cut chunks only if their number is open; a note says that they are not cut."""
        words = ("baseline", name, "--topology", "ring:3", "--collective", "allreduce", "--size", "16MB")
        whole = run_json(*words, "--chunks-per-rank", 1)[1]
        assert (whole["num_transfers"], "not cut" in " ".join(whole["notes"])) == (3 * 2 * 2, True)

    @pytest.mark.slow
    def test_of_a_sketch(self, run_json, sketch_file):
        """A sketch gives the machine, its nodes and the chunk size of a baseline."""
        code, values = run_json("baseline", "hierarchical", sketch_file, "--collective", "allgather")
        assert (code, values["topology"], values["size_bytes"]) == (0, "ndv2 x2", 16_000_000)

    @pytest.mark.slow
    def test_a_sketch_that_is_ignored_is_a_note(self, run_json):
        """A note says that a baseline ignores a sketch; without a sketch there is no such note."""
        options = ("--collective", "broadcast", "--size", "8KB")
        sketched = run_json("baseline", "ring", "ndv2/sk1", *options)[1]["notes"]
        plain = run_json("baseline", "ring", "--topology", "ndv2", *options)[1]["notes"]
        assert ["ignores the sketch" in " ".join(notes) for notes in (sketched, plain)] == [True, False]

    @pytest.mark.slow
    def test_nodes_rescale_the_sketch(self, run_json, sketch_file):
        """``--nodes`` rescales a sketch to another number of nodes."""
        code, values = run_json("baseline", "ring", sketch_file, "--collective", "allgather", "--nodes", 3)
        assert (code, values["topology"]) == (0, "ndv2 x3")

    def test_list(self, run, run_json):
        """``--list`` names every baseline, with a sentence about it."""
        assert list(run_json("baseline", "--list")[1]["baselines"]) == [*taccl.baselines.BASELINES, "nccl"]
        rows = run("baseline", "--list")[1].splitlines()
        assert all(row.split(maxsplit=1)[1].endswith(".") for row in rows)

    @pytest.mark.slow
    def test_what_nccl_considered_is_shown(self, run_json, run):
        """The answer lists all NCCL algorithms and protocols, and says if NVLS is left out on request."""
        words = ("nccl", "dgx-h100", "--profile", "nccl", "--collective", "allreduce", "--size", "1KB")
        every = {(a, p) for a in ("ring", "tree") for p in ("ll", "ll128", "simple")}
        for added, sums in (((), {("nvls", "simple")}), (("--no-nvls",), set())):
            code, values = run_json("baseline", *words, *added)
            assert code == 0
            found = {(each["algorithm"], each["protocol"]) for each in values["considered"]}
            assert found == every | sums
        assert "nvls: none, by --no-nvls" in run("baseline", *words, "--no-nvls")[1]


def test_backends(run, run_json, monkeypatch):
    """Each backend, here of few, is available or has a reason why not, and a line in the text."""
    monkeypatch.setattr(registry, "_SOLVERS", {"highs": registry._SOLVERS["highs"]})
    code, values = run_json("backends")
    assert (code, "greedy" in [row["name"] for row in values["backends"]]) == (0, True)
    assert all(row["available"] or row["why_not"] for row in values["backends"])
    code, out, _ = run("backends")
    assert (code, "highs" in out) == (0, True)


class TestProblem:
    """Options that describe the problem."""

    @pytest.mark.parametrize("name", ["all_gather", "All-Gather", "ALLGATHER", "all gather"])
    def test_spelling_of_a_collective(self, run_json, name):
        """Case, dashes and underscores in a collective's name do not matter, nor case in a baseline's."""
        code, values = run_json("baseline", "Ring", *RING, "--size", "4KB", "--collective", name)
        assert (code, values["collective"]) == (0, "allgather")

    @pytest.mark.parametrize("name", taccl.collectives.COLLECTIVES)
    def test_chunks_are_counted_before_they_are_made(self, name):
        """With five chunks per rank every collective has five times as many chunks as with one."""
        one, five = (
            taccl.collectives.make(name, 3, chunks_per_rank=k, **arguments_for(name, 3)).num_chunks
            for k in (1, 5)
        )
        assert five == 5 * one

    @pytest.mark.slow
    @pytest.mark.parametrize("verb", ["bound", "synthesize", "compare"])
    def test_usual_size(self, run, verb):
        """Without a sketch and a size, the size is 64 MB, and stderr says so."""
        words = ("--backends", "greedy", "--no-cache", "--time-limit", 1) if verb == "compare" else ()
        code, out, err = run(verb, "--topology", "ring:4", "--collective", "allgather", *words)
        assert code == 0
        assert "64MB" in out
        assert err.count("note: the size is 64MB, as neither --size nor --chunk-size is given") == 1

    @pytest.mark.slow
    def test_rooted_and_multi_root(self, run_json):
        """The roots given by ``--root`` and ``--roots`` are those of the collective."""
        fabric = ("--topology", "fully-connected:4", "--size", "1KB")
        assert run_json("bound", *fabric, "--collective", "broadcast", "--root", 3)[0] == 0
        _, values = run_json("bound", *fabric, "--collective", "multi-root-broadcast", "--roots", "0,2")
        assert values["num_chunks"] == 2

    @pytest.mark.slow
    def test_upstream_cost_models(self, run_json, upstream):
        """With a topology file and a sketch of the published tool its costs are used, unless the physical
        model is requested."""
        words = (
            "bound", upstream / "sketch" / "ndv2-n2.json", "--topology",
            upstream / "topo" / "ndv2-2MB.json", "--collective", "allgather",
        )  # fmt: skip
        assert run_json(*words)[1]["cost_model"] == "upstream"
        assert run_json(*words, "--cost-model", "physical")[1]["cost_model"] == "physical"

    @pytest.mark.slow
    def test_upstream_topology_with_another_sketch(self, run_json, upstream, sketch_file):
        """With a sketch of taccl's own, the published tool's topology file selects the machine that it names."""
        _, values = run_json(
            "bound", sketch_file, "--topology", upstream / "topo" / "ndv2-2MB.json",
            "--collective", "allgather",
        )  # fmt: skip
        assert values["cost_model"] == "physical"

    @pytest.mark.slow
    def test_topology_file_keeps_its_nodes(self, run, tmp_path):
        """``--nodes`` is refused if it contradicts a topology file."""
        path = tmp_path / "mine.toml"
        path.write_text('schema = 1\nmachine = "ndv2"\nnodes = 2\n')
        words = ("bound", "--topology", path, "--collective", "allgather", "--size", "16MB", "--nodes")
        assert run(*words, 2)[0] == 0
        code, _, err = run(*words, 3)
        assert code == 2
        assert "found --nodes 3, but the topology has 2" in err


class TestErrors:
    """Exit codes and messages."""

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (errors.InfeasibleError("no schedule exists"), 1),
            (errors.NoSolutionError("nothing found"), 1),
            (errors.VerificationError("a rule is broken"), 1),
            (errors.CollectiveError("wrong", where="root"), 2),
            (errors.SolverUnavailableError("not installed"), 3),
            (KeyboardInterrupt(), 130),
            (ZeroDivisionError("division by zero"), 70),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    def test_exit_codes(self, run, run_json, monkeypatch, error, code):
        """Each kind of error has its exit code, one line on stderr, and one object under ``--json``."""

        def fail(*_, **__):
            raise error

        monkeypatch.setattr(taccl, "prices", fail)
        found, out, err = run("bound", *SMALL)
        assert (found, out, err.count("\n")) == (code, "", 1)
        assert err.startswith("taccl: error: ")
        found, values = run_json("bound", *SMALL)
        assert found == code
        assert set(values) == {"error", "where", "exit_code"}
        where = "--root" if hasattr(error, "where") else None  # parameters are named as their options
        assert (values["exit_code"], values["where"]) == (code, where)

    def test_traceback_on_demand(self, run, monkeypatch):
        """With TACCL_TRACEBACK=1 an error has a traceback, and the same exit code."""
        monkeypatch.setenv("TACCL_TRACEBACK", "1")
        code, _, err = run("show", "nosuch")
        assert code == 2
        assert "Traceback" in err

    def test_warnings(self, run, tmp_path):
        """A warning is one line on stderr, and does not change the exit code."""
        path = tmp_path / "fine.toml"
        path.write_text('schema = 1\nfabric = "ring:4"\nalpha_us = 0.00000000001\n')
        code, out, err = run("bound", "--topology", path, "--collective", "allgather", "--size", "4MB")
        assert (code, err.count("\n")) == (0, 1)
        assert err.startswith("taccl: warning: ring:4: each cost is rounded up")
        assert out.startswith("allgather on ring:4")

    def test_argument_errors_under_json(self, run, run_json):
        """Under ``--json`` a wrong argument is reported as one object, too."""
        code, values = run_json("bound", *SMALL, "--nodes", "x")
        assert (code, values["exit_code"]) == (2, 2)
        said = json.loads(run("--json", "show", "ring:4")[1])["error"]
        assert "there is no option --json before the verb" in said

    @pytest.mark.parametrize("verb", VERBS)
    def test_help_of_verbs(self, run, verb):
        """Every verb is in the general help, and its own help ends with two commands that work."""
        code, out, _ = run("--help")
        assert (code, verb in out.split()) == (0, True)
        code, out, _ = run(verb, "--help")
        assert (code, out.startswith(f"usage: taccl {verb}"), "--json" in out) == (0, True, True)
        examples = out.rstrip().partition("\nexamples:\n")[2].splitlines()
        assert len(examples) >= 2
        for example in examples:
            assert example.startswith(f"  taccl {verb}")
            build_parser().parse_args(shlex.split(example)[1:])

    def test_help_under_json(self, run):
        """Under ``--json`` help and version are objects, too."""
        assert "usage" in json.loads(run("--help", "--json")[1])["help"]
        assert json.loads(run("--version", "--json")[1]) == {"version": taccl.__version__}


@pytest.mark.slow
class TestProcess:
    """The command as a separate process."""

    def test_version(self):
        """``python -m taccl --version`` prints the version."""
        done = in_process("--version")
        assert (done.returncode, done.stdout) == (0, f"taccl {taccl.__version__}\n")

    def test_quiet_in_a_pipe(self):
        """In a pipe only the answer is written."""
        done = in_process("baseline", "best", *SMALL)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.skipif(sys.platform == "win32", reason="closes a POSIX pipe")
    def test_broken_pipe(self):
        """If the reader closes the pipe, the command ends without an error."""
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "taccl", "show", "ndv2"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")

    def test_terminal_without_unicode(self, sketch_file):
        """A name that the terminal cannot show does not stop the command."""
        sketch_file.write_text(SKETCH.replace("test sketch", "Größe"), encoding="utf-8")
        done = in_process("show", str(sketch_file), env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0


class TestOneRank:
    """Topologies of one rank, whose schedules have no sends."""

    @pytest.fixture
    def alone(self, tmp_path):
        """Path of a topology file without links."""
        path = tmp_path / "alone.toml"
        path.write_text('schema = 1\nname = "alone"\nnodes = 1\nranks_per_node = 1\nlink = []\n')
        return path

    @pytest.mark.parametrize(
        "name",
        [
            "broadcast",
            "scatter",
            "gather",
            "allgather",
            "alltoall",
            "reduce",
            "reduce-scatter",
            "allreduce",
            "scan",
        ],
    )
    def test_synthesize(self, run_json, alone, name):
        """On one rank the result is the empty schedule, which is optimal."""
        code, values = run_json(
            "synthesize", alone, "--collective", name, "--size", "1MB", "--time-limit", "2"
        )
        assert (code, values["num_transfers"], values["finish_us"], values["gap"]) == (0, 0, 0, 0)
        assert values["algbw_gb_per_s"] is None

    def test_plan(self, run, alone):
        """On one rank a plan has a single range of sizes, all of which take no time."""
        code, out, _ = run(
            "plan", alone, "--collective", "allreduce", "--sizes", "1KB,1MB", "--time-limit", "1"
        )
        assert code == 0
        assert "0 us to 0 us" in out


def test_the_limit_of_the_command_counts_from_the_start_of_its_process(monkeypatch):
    """The time limit counts from the start of the process, or from the call if arguments are passed."""
    given = []
    monkeypatch.setattr("taccl.cli.command.run", lambda *_, began_s: given.append(began_s) or 0)
    monkeypatch.setattr("taccl.cli.process_began_s", lambda: -5.0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    cli.main()
    cli.main(["backends"])
    assert given[0] == -5.0 < given[1]
