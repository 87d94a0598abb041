"""The cache of results: keyed by content, verified when read, shared by processes."""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import taccl
from taccl.errors import CacheWarning, InputError
from taccl.explore import cache as cache_module
from taccl.explore.cache import Cache, cache_folder, entry_document, key_of
from taccl.explore.rows import new_row
from taccl.schedule.schedule import Schedule
from taccl.synthesis import register, unregister
from tests.hardships import without_privileges

KEY = "0" * 64
#: The function `taccl.synthesize` itself, also while a test replaces it.
SYNTHESIZE = taccl.synthesize


@pytest.fixture
def stored(problem, cache):
    """Row of a run whose result is in the cache."""
    table = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    return next(table.itertuples())


def refused(cache, key, match):
    """True if the entry is a miss with a matching reason."""
    return re.search(match, cache.find(key)) is not None


def edit(path, change):
    """Apply a change to the JSON document in a file."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.slow
def test_a_second_comparison_is_read(problem, cache, stored):
    """A repeated comparison is read from the cache without a run, and states the first run's seconds."""
    again = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    assert again.from_cache.all()
    expected = stored._replace(from_cache=True)
    assert [str(value) for value in next(again.itertuples())] == [str(value) for value in expected]


@pytest.mark.slow
def test_an_entry_is_a_schedule_file(problem, cache, stored):
    """`taccl.load` reads what the cache stores, and the cache gives the same schedule."""
    schedule = taccl.load(cache.path(stored.key))
    assert schedule == cache.schedule(stored.key)
    assert (schedule.finish_us, schedule.problem) == (41.0, problem)


def test_a_run_without_a_schedule_has_none(impossible, cache):
    """A run without a schedule has a key, and asking for its schedule gives the run's error."""
    table = taccl.compare(impossible, backends=["greedy"], num_workers=1, cache=cache, full=True)
    with pytest.raises(InputError, match=r"found a run without a schedule \(infeasible\)"):
        cache.schedule(table.key[0])


def test_a_schedule_that_is_not_there(cache):
    """The error for a schedule that the cache lacks names the folder where it was sought."""
    with pytest.raises(taccl.InputError, match="found nothing in"):
        cache.schedule(KEY)
    with pytest.raises(taccl.InputError, match="64 hexadecimal digits"):
        cache.schedule("../../etc/passwd")


@pytest.mark.slow
def test_proofs_of_infeasibility_are_stored(impossible, cache):
    """A proof of infeasibility is stored and read."""
    for known in (False, True):
        (row,) = taccl.compare(
            impossible, backends=["greedy"], num_workers=1, cache=cache, full=True
        ).itertuples()
        assert (row.status, row.from_cache) == ("infeasible", known)


@pytest.mark.parametrize("kind", [taccl.NoSolutionError, taccl.SolverUnavailableError, MemoryError])
def test_temporary_failures_are_not_stored(problem, cache, monkeypatch, kind):
    """Failures for lack of time, licence or memory are not stored."""

    def synthesize(*_, **__):
        raise kind("not now")

    monkeypatch.setattr("taccl.explore.run._load_libraries", lambda: None)
    monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", synthesize)
    taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    assert cache.info().num_entries == 0


def test_interrupted_results_are_not_stored(problem, cache, monkeypatch):
    """Interrupted results are in the table but not stored."""

    def synthesize(problem, **options):
        return dataclasses.replace(SYNTHESIZE(problem, **options), stopped="interrupted")

    monkeypatch.setattr("taccl.explore.run._load_libraries", lambda: None)
    monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", synthesize)
    with pytest.warns(taccl.TacclWarning, match="stopped by Ctrl-C"):
        table = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    assert (table.finish_us[0], cache.info().num_entries) == (41.0, 0)


def test_keys_distinguish_runs(monkeypatch):
    """Problem, options, code and versions change the key; nothing else does."""
    options = {"backend": "greedy", "seed": 0, "time_limit_s": 30.0, "threads": 1}
    key = key_of("a", **options)
    assert key == key_of("a", **dict(reversed(options.items())))
    others = [key_of("b", **options)]
    others += [key_of("a", **{**options, name: 9}) for name in options]
    for name, changed in (("_code_digest", "edited"), ("_versions", {"taccl": "99"})):
        monkeypatch.setattr(cache_module, name, lambda changed=changed: changed)
        others.append(key_of("a", **options))
    assert len({key, *others}) == 8


def test_a_registered_proposer_changes_the_key():
    """A registered proposer changes the key of a run in the cache."""

    class Mine:
        name = "mine"
        supports = propose = staticmethod(lambda _: None)

    without = key_of("a", seed=0)
    register(Mine())
    try:
        assert key_of("a", seed=0) != without
    finally:
        unregister("mine")
    assert key_of("a", seed=0) == without


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.write_text(path.read_text()[:500]), "computed again"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(b"\0\1\2"), "binary"),
        (lambda path: path.write_text("[]"), "computed again"),
        (lambda path: path.write_text('{"format": "other"}'), "it is no result"),
        (lambda path: path.write_text('{"format": "taccl-failure"}'), "computed again"),
        (lambda path: edit(path, lambda d: d.update(finish_us=1.0)), "file_digest"),
        (lambda path: edit(path, lambda d: d["result"]["row"].update(gap=9)), "file_digest"),
        (lambda path: edit(path, lambda d: d["transfers"]["end"].reverse()), "digest"),
        (lambda path: edit(path, lambda d: d["problem"].update(size_bytes=1)), "digest"),
    ],
)
def test_damage_is_a_miss(problem, cache, stored, damage, match):
    """A truncated or edited file is a miss with a reason, and the next run replaces it."""
    damage(cache.path(stored.key))
    assert refused(cache, stored.key, match)
    with pytest.warns(CacheWarning):
        (row,) = taccl.compare(
            problem, backends=["greedy"], num_workers=1, cache=cache, full=True
        ).itertuples()
    assert (row.status, row.from_cache) == ("proven for its chunks", False)
    assert cache.find(stored.key).schedule.finish_us == 41.0


@pytest.mark.slow
def test_a_wrong_schedule_is_a_miss(cache, stored):
    """A schedule that the verifier refuses is a miss, even with matching digests."""
    entry = cache.find(stored.key)
    columns = {
        n: getattr(entry.schedule, n)[1:] for n in ("chunk", "link", "start", "end", "group", "reduce")
    }
    wrong = Schedule(entry.schedule.problem, **columns)
    row = entry.row | {"schedule_digest": wrong.digest()}
    cache.store(entry_document(stored.key, row, wrong))
    assert refused(cache, stored.key, "computed again")


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        {"finish_us": 40.0}, {"bound_us": 42.0, "gap": -1 / 42}, {"gap": 0.5}, {"status": "found"},
        {"algbw_gb_per_s": 1.0}, {"num_sends": 1}, {"schedule_digest": "0"}, {"verified": False},
        {"bound_us": None},
    ],
)  # fmt: skip
def test_a_row_that_is_not_its_schedules_is_a_miss(cache, stored, said):
    """A row that contradicts its schedule or bound is a miss, even with matching digests."""
    entry = cache.find(stored.key)
    cache.store(entry_document(stored.key, entry.row | said, entry.schedule))
    assert refused(cache, stored.key, "computed again")


@pytest.mark.slow
def test_the_row_of_a_compact_schedule_is_read_as_stored(cache):
    """The row of a compact schedule is read as stored."""
    problem = taccl.make_problem(
        taccl.topologies.torus(7, 7), "alltoall", size_bytes=49_000, chunks_per_rank=1
    )
    for from_cache in (False, True):
        table = taccl.compare(
            problem, backends=["auto"], time_limit_s=8, num_workers=1, cache=cache, full=True
        )
        assert [*table.from_cache] == [from_cache]


@pytest.mark.slow
def test_the_result_of_another_run_is_a_miss(cache, stored):
    """A file moved to another key is a miss."""
    cache.path(stored.key).rename(cache.path(KEY))
    assert refused(cache, KEY, "another run")


def test_the_result_of_another_problem_is_a_miss(problem, cache, stored):
    """An entry of another problem is a miss."""
    other = dataclasses.replace(problem, size_bytes=5)
    assert "another problem" in cache.find(stored.key, other)


def test_reading_gives_the_callers_problem(problem, cache, stored):
    """A schedule read for a known problem refers to that object."""
    assert cache.find(stored.key, problem).schedule.problem is problem


@pytest.mark.slow
def test_results_that_cannot_be_stored_give_one_warning(problem, tmp_path):
    """If the cache folder cannot be made, runs are completed with one warning, and nothing is stored."""
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match="cannot be stored") as caught:
        table = taccl.compare(
            problem, backends=["greedy"], seeds=range(3), num_workers=1, cache=tmp_path / "file" / "cache"
        )
    assert (len(caught), list(table.status)) == (1, ["proven for its chunks"] * 3)


@pytest.mark.slow
def test_info_and_clear(problem, cache):
    """`info` counts the results; `clear` removes these and drafts of killed processes, but no other files."""
    assert cache.info().num_entries == 0
    taccl.compare(problem, backends=["greedy"], seeds=range(3), num_workers=1, cache=cache, full=True)
    key = "ab" * 32
    draft = cache.path(key).parent / f".{key}.json.0123456789abcdef.tmp"
    draft.write_text("left by a process that was killed")
    mine = draft.parent / "notes.txt"
    mine.write_text("not the cache's")
    info = cache.info()
    assert info.num_entries == 3
    assert info.num_bytes > 3000
    assert "3 results" in repr(info)
    assert cache.clear().num_entries == 3
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == [mine]
    assert cache.clear().num_entries == 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TACCL_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/x"}, "/a"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/taccl"),
        ({}, "/home/me/.cache/taccl"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_users_folder(monkeypatch, environment, expected):
    """The default folder of the cache is TACCL_CACHE_DIR, or the platform's cache folder."""
    for name in ("TACCL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


@pytest.mark.slow
def test_processes_share_a_folder(problem, cache):
    """Two processes write the same keys while this one reads: no half-written entry appears."""
    script = textwrap.dedent("""
        import sys, taccl
        from taccl.explore.cache import entry_document
        from taccl.explore.rows import new_row
        cache = taccl.Cache(sys.argv[1])
        print("ready", flush=True)
        for number in range(150):
            row = new_row(error="x" * 20000, problem_digest="d")
            assert cache.store(entry_document(f"{number % 3:064x}", row, None))
    """)
    command = [sys.executable, "-c", script, str(cache.folder)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    found = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(writer.poll() is None for writer in writers):
            for number in range(3):
                found += cache.find(f"{number:064x}") is not None
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert found > 0
    assert cache.info().num_entries == 3
    assert cache.find("0" * 64).row == new_row(error="x" * 20000, problem_digest="d")


def test_a_cache_says_where_it_is(tmp_path):
    """The `repr` of a cache is an expression that creates the same cache."""
    assert repr(Cache(tmp_path)) == f"Cache({str(tmp_path)!r})"


@pytest.mark.slow
def test_an_impossible_folder_name_gives_a_warning(problem, tmp_path):
    """A folder name that is too long gives a warning when storing and an error when inspected."""
    cache = Cache(tmp_path / ("a" * 300))
    with pytest.warns(CacheWarning, match="cannot be stored .*too long"):
        table = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    assert table.verified.all()
    with pytest.raises(taccl.InputError, match="too long"):
        cache.info()


def test_a_file_is_no_cache(tmp_path):
    """A file in place of the cache folder is an error, not an empty cache."""
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(taccl.InputError, match="not a folder"):
        Cache(path).clear()


@pytest.mark.parametrize("folder", ["", "a\0b", 3])
def test_what_is_no_path_is_refused(folder):
    """A path that is empty, has a null character or is a number is refused."""
    with pytest.raises(taccl.InputError, match="expected .* path"):
        Cache(folder)


def test_an_unknown_user_stays_as_written(monkeypatch):
    """A folder name ``~name`` of an unknown user is used unchanged, as by a shell."""
    monkeypatch.setenv("TACCL_CACHE_DIR", "~nobody-has-this-name/x")
    assert cache_folder() == Path("~nobody-has-this-name/x")


def test_a_user_without_a_home_has_a_cache(monkeypatch, tmp_path):
    """Without HOME and without a known user, as in many containers, the cache is in the temporary folder."""
    for name in ("TACCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a folder in place of an entry", "a file in place of a folder"])
def test_a_blocked_path_gives_a_warning(problem, cache, stored, what):
    """If something blocks the entry's path, the result is returned with one warning."""
    path = cache.path(stored.key)
    if what == "a file in place of a folder":
        path.unlink()
        path.parent.rmdir()
        path.parent.touch()
    else:
        path.unlink()
        path.mkdir()
    with pytest.warns(CacheWarning, match="cannot be stored") as said:
        table = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True)
    assert (table.verified.all(), len(said)) == (True, 1)


@pytest.mark.slow
def test_a_cache_without_rights_gives_warnings(read_only):
    """Unwritable folders and unreadable entries give the same table, with a warning each."""
    script = textwrap.dedent("""
        import os, sys, taccl, warnings
        from taccl.topology.registry import parse
        problem = taccl.make_problem(parse("ring:4"), taccl.collectives.allgather(4), size_bytes=4)
        cache = taccl.Cache(sys.argv[1])
        for mode in (0o555, 0o755):
            with warnings.catch_warnings(record=True) as said:
                os.chmod(sys.argv[1], mode)
                row, = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True).itertuples()
                if mode == 0o755:
                    os.chmod(cache.path(row.key), 0)
                    row, = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=cache, full=True).itertuples()
            print(row.status, *[str(each.message)[len(sys.argv[1]):].partition(":")[2] for each in said])
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(read_only)],
        capture_output=True,
        text=True,
        preexec_fn=without_privileges,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([
        "proven for its chunks  results cannot be stored (Permission denied)",
        "proven for its chunks  a stored result is unusable and computed again (the file cannot be read (Permission denied); give another path)",
    ], "")  # fmt: skip
