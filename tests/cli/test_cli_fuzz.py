"""No input file makes a command fail with an internal error, or with more than one sentence."""

import contextlib
import io
import os
import random
import shutil

import pytest

from taccl.cli import main
from tests.cli.mutations import CORPUS, mutated
from tests.fuzzing import MANY, cases

#: Commands by kind of file: {f} is the hostile file, {c} the folder of valid ones, {o} the output folder.
_PROBLEM = "--collective allgather --topology {c}/topology.toml"
_SKETCH = (
    "show {f}",
    f"bound {{f}} {_PROBLEM}",
    f"baseline ring {{f}} {_PROBLEM}",
    f"synthesize {{f}} {_PROBLEM} --backend greedy --time-limit 0.1",
    f"explain {{f}} {_PROBLEM} --time-limit 0.2",
    f"compare {{f}} {_PROBLEM} --backends greedy --time-limit 0.1",
    "suggest {c}/topology.toml --collective allgather --size 4KB --time-limit 0.1 --check {f}",
    "sweep {c}/topology.toml --collective allgather --sketches {f} --backends greedy --time-limit 0.1 --jobs 1",
    f"plan {{f}} {_PROBLEM} --sizes 1KB --backend greedy --time-limit 0.1",
    "show {f}",
)
_TOPOLOGY = (
    "show {f}",
    "bound --topology {f} --collective alltoall --size 1KB",
    "baseline best --topology {f} --collective allreduce --size 1KB",
    "synthesize {c}/sketch.toml --topology {f} --collective allgather --backend greedy --time-limit 0.1",
    "explain --topology {f} --collective broadcast --root 1 --size 1KB --time-limit 0.2",
    "suggest {f} --collective allgather --size 4KB --time-limit 0.1 --most 1",
    "plot {f} --what topology -o {o}/picture.svg",
    "convert {f} {o}/topology.toml",
    "sweep {f} --collective allgather --sizes 1KB --backends greedy --time-limit 0.1 --jobs 1",
    "plan --topology {f} --collective allgather --sizes 1KB --backend greedy --time-limit 0.1",
    "simulate {c}/program.xml --topology {f} --size 4KB",
)
_SCHEDULE = (
    "show {f}",
    "verify {f}",
    "simulate {f} --sizes 1KB,1GB --tiles 2 --jitter 0.1",
    "run {f} --ranks 7",
    "convert {f} {o}/table.csv",
    "convert {f} {o}/program.xml",
    "convert {f} {o}/algorithm.json --to upstream-algorithm",
    "convert {f} {o}/trace.trace.json",
    "convert {f} {o}/trace.et",
    "plot {f} -o {o}/picture.svg",
    "plot {f} -o {o}/picture.svg --what bandwidth --sizes 1KB",
    "verify {f} --topology ring:4",
)
_PROGRAM = (
    "show {f}",
    "verify {f}",
    "run {f} --ranks 7",
    "simulate {f} --topology ring:4 --size 4KB",
    "bound {f} --topology ring:4 --size 4KB",
    "convert {f} {o}/schedule.json --topology ring:4 --size 4KB",
    "convert {f} {o}/plan.plan.json --set ranks-per-node=4",
)
_COMMANDS = {
    "sketch.toml": _SKETCH, "sketch.json": _SKETCH, "upstream-sketch.json": _SKETCH,
    "topology.toml": _TOPOLOGY, "topology.json": _TOPOLOGY, "machine.toml": _TOPOLOGY,
    "upstream-topology.json": _TOPOLOGY, "astra.yml": _TOPOLOGY, "nvidia-smi.txt": _TOPOLOGY,
    "nccl.xml": _TOPOLOGY, "schedule.json": _SCHEDULE, "sketched.json": _SCHEDULE, "algorithm.json": _SCHEDULE,
    "program.xml": _PROGRAM, "program.plan.json": _SCHEDULE, "timeline.trace.json": _SCHEDULE,
    "transfers.csv": _SCHEDULE,
}  # fmt: skip
_EVERY = tuple(dict.fromkeys(_SKETCH + _TOPOLOGY + _SCHEDULE + _PROGRAM))


def ended(words):
    """(exit code, output) of one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def check(words):
    """Assert that a command ends with a documented exit code, and an error with one printable line."""
    code, out, err = ended(words)
    said = f"taccl {' '.join(words)}\n{err}"
    assert code in (0, 1, 2, 3), said
    errors = [line for line in err.splitlines() if not line.startswith(("taccl: warning: ", "taccl: note: "))]
    if code == 2:
        assert (out, len(errors)) == ("", 1), said
    assert all(line.isprintable() and len(line) < 6000 for line in err.split("\n")), said
    assert all(line.isprintable() for line in out.split("\n")), out
    return code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder for hostile files, with an output folder in it and a result cache beside it."""
    monkeypatch.setenv("TACCL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "output").mkdir()
    return tmp_path


def _words(command, file, folder):
    """Arguments of a command, after removal of the last run's output."""
    for old in (folder / "output").iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return [word.format(f=file, c=CORPUS, o=folder / "output") for word in command.split()]


@pytest.mark.parametrize("name", _COMMANDS)
def test_corpus_is_valid(folder, name):
    """Before mutation, every file of the corpus is valid input, or recognised as a format that is not read."""
    unread = ("program.plan.json", "timeline.trace.json", "transfers.csv")
    command = "verify {f}" if name == "algorithm.json" else "show {f}"
    assert check(_words(command, str(CORPUS / name), folder)) == (2 if name in unread else 0)


@pytest.mark.fuzz
def test_mutated_files(folder):
    """Files mutated by structure, line or byte are given to every verb that reads such files, or any."""
    for seed in cases("hostile files on the command line", few=40, many=3_000):
        chance = random.Random(seed)
        name = chance.choice(list(_COMMANDS))
        path = folder / name
        path.write_bytes(mutated(CORPUS / name, chance))
        command = chance.choice(_COMMANDS[name] if chance.random() < 0.9 else _EVERY)
        check(_words(command, str(path), folder))


#: Paths that are not regular files, or cannot be read to their end.
_PATHS = (
    "n" * 5000, "n" * 5000 + ".toml", "d/" * 3000 + "x.json", "a\0b.toml", "a\udcff.toml", "\x1b[31mx\n.json", "", "-", ".",
    "/dev/zero", "{folder}/pipe.toml", "{folder}/circle.json", "{folder}/nowhere.xml", "{folder}",
)  # fmt: skip
#: One command of each verb that takes a file.
_VERBS = tuple({command.split()[0]: command for command in _EVERY}.values())


@pytest.mark.slow
@pytest.mark.parametrize("command", _VERBS, ids=lambda command: command.split()[0])
def test_paths_that_lead_to_no_file(folder, command):
    """Paths that are too long, pipes without a writer, endless devices and circular links are refused
    immediately."""
    os.mkfifo(folder / "pipe.toml")
    (folder / "circle.json").symlink_to(folder / "circle.json")
    (folder / "nowhere.xml").symlink_to(folder / "none")
    for path in _PATHS:
        assert check(_words(command, path.replace("{folder}", str(folder)), folder)) in (1, 2)


_CONTENTS = {
    "empty": b"", "blank": b" \n", "UTF-16": "schema = 1".encode("utf-16"), "Latin": b"name = '\xe9'",
    "gzip": b"\x1f\x8b\x08\0\0", "zip": b"PK\x03\x04\0", "parquet": b"PAR1\x15\x04\x15PAR1", "list": b"[1]",
    "deep TOML": b"a = " + b"[" * 5_000 + b"]" * 5_000, "dotted TOML": b"a" + b".a" * 5_000 + b" = 1",
    "deep JSON": b'{"a":' * 5_000, "deep enough JSON": b'{"nnodes":' * 900 + b"1" + b"}" * 900,
    "deep XML": b"<algo>" * 20_000, "wide XML": b'<algo name="' + b"x" * 1_000_000 + b'"/>',
    "bomb": b'<!DOCTYPE a [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><system>&b;</system>',
    "alias": b"a: &a [x, x]\nnpus_count: [ *a, *a ]\ntopology: [ Ring ]\n",
    "digits": b'{"schema": 1, "fabric": "ring:4", "alpha_us": ' + b"9" * 10_000 + b"}",
    "4,000 digits": b'{"schema": 1, "fabric": "ring:4", "alpha_us": ' + b"9" * 4000 + b"}",
    "exponent": b'{"schema": 1, "fabric": "ring:4", "alpha_us": 1e999999999}',
    "infinity": b'{"schema": 1, "fabric": "ring:4", "alpha_us": 1e400}',
    "not a number": b'{"schema": 1, "fabric": "ring:4", "alpha_us": NaN}',
    "key twice": b'{"schema": 1, "schema": 1, "fabric": "ring:4"}',
    "half a character": b'{"schema": 1, "fabric": "\\ud800"}',
    "axes": b'{"schema": 1, "fabric": "torus:' + b"2x" * 50_000 + b'2"}',
    "ranks": b'{"schema": 1, "fabric": "ring:99999999"}',
    "nodes": b'schema = 1\nmachine = "dgx2"\nnodes = 1000000000',
    "version": b'{"format": "taccl-schedule", "version": 2, "result": ' + b"[" * 60 + b"]" * 60 + b"}",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(_CONTENTS)), ids=list(_CONTENTS))
def test_contents_that_are_no_file_of_ours(folder, place):
    """Every verb refuses a file with foreign contents: exit code 1, or 2 and an error of one line.

    A short run tries each of the contents on every second verb only.
    """
    content = [*_CONTENTS.values()][place]
    verbs = [*enumerate(_VERBS)]
    for number, command in verbs if MANY else verbs[place % 2 :: 2]:
        path = folder / f"file{('.toml', '.json', '.xml', '.txt')[number % 4]}"
        path.write_bytes(content)
        assert check(_words(command, str(path), folder)) in (1, 2)


@pytest.mark.parametrize("command", [
    "baseline ring --collective allgather --topology ring:4 --size 4KB -o", "convert {c}/schedule.json",
    "plot {c}/schedule.json -o", "report {c}/schedule.json --time-limit 0.01 -o",
    "suggest ring:4 --collective allgather --size 4KB --most 1 --time-limit 0.1 -o",
    "synthesize --topology ring:4 --collective allgather --size 4KB --backend greedy --time-limit 0.1 --spill",
    "compare --collective allgather --topology ring:4 --size 4KB --backends greedy --time-limit 0.1 -o",
    "plan --collective allgather --topology ring:4 --sizes 1KB --backend greedy --time-limit 0.1 -o",
], ids=lambda command: command.split()[0])  # fmt: skip
def test_output_that_cannot_be_written(folder, command):
    """Every verb that writes refuses a path that is too long, has a null character, or is under a file."""
    (folder / "file").touch()
    ending = {"plot": ".svg", "report": ".html", "compare": ".csv", "convert": ".csv"}.get(
        command.split()[0], ""
    )
    for path in ("n" * 5000, "a\0b", f"{folder}/file/x"):
        code, _, err = ended([*_words(command, "", folder), path + ending])
        assert (code, err.count("taccl: error: ")) == (2, 1), err
