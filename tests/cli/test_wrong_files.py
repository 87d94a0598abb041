"""Files of every kind given to every verb: the message names the kind, and the command in it works."""

import re
import shlex

import pytest

import taccl
from taccl._internal.file_kinds import a
from taccl.formats.registry import write
from taccl.workload import save_workload
from tests.effort import brief_plan, quick_fits
from tests.foreign import OURS
from tests.fuzzing import MANY, thinned
from tests.outputs import FIELDS, TEXTS
from tests.workload.test_replay import block

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("_quick_fits"),
    pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning"),
]

VERBS = {
    "show": "show {file}",
    "verify": "verify {file}",
    "simulate": "simulate {file}",
    "bound": "bound {file} --collective allgather --size 1KB",
    "baseline": "baseline ring {file} --collective allgather --size 1KB",
    "plot": "plot {file} -o {out}.svg --overwrite",
    "report": "report {file} -o {out}.html --overwrite --time-limit 0.1",
    "convert": "convert {file} {out}.toml --overwrite",
    "fit": "fit {file} --topology dgx-h100",
    "reorder": "reorder {file} --time-limit 0.1",
    "run": "run {file} --ranks 1000",
    "plan": "plan {file} --collective allgather --sizes 1KB,2KB --time-limit 0.1",
    "explain": "explain {file} --collective allgather --size 1KB",
    "--topology": "bound --topology {file} --collective allgather --size 1KB",
    "--profile": "show dgx-h100 --profile {file}",
    "--hosts": "reorder ring:4 --hosts {file} --time-limit 0.1",
    "--algorithm": "reorder ring:4 --algorithm {file} --time-limit 0.1",
    "--measured": "report {schedule} --measured {file} -o {out}.html --overwrite --time-limit 0.1",
}
#: Commands that take a topology, but no other kind of file in its place.
ON_TOPOLOGIES = [
    "suggest {file} --collective allgather",
    "sweep {file} --collective allgather",
    "fit {log} --topology {file}",
    "diagnose {log} --topology {file}",
]
#: Verbs that search or start processes for long; tests of their own run them.
_NOT_RUN = ("taccl run", "taccl probe")


@pytest.fixture(scope="module")
def tried():
    """Commands named in messages; each is run once."""
    return set()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: path}: files of all kinds that taccl identifies.

    Those that taccl reads or writes are complete; the others are their first lines.
    """
    folder = tmp_path_factory.mktemp("kinds")
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4_000_000)
    schedule = taccl.baselines.baseline("ring", problem)
    found = {kind: folder / f"{number}.txt" for number, kind in enumerate([*TEXTS, *FIELDS])}
    for kind, path in found.items():
        path.write_text({**TEXTS, **FIELDS}[kind])
    formats = {
        "schedule": "taccl-schedule", "program": "msccl-xml", "plan for MSCCL++": "mscclpp",
        "timeline": "perfetto", "table of transfers": "csv",
        "algorithm of the published TACCL tool": "upstream-algorithm",
    }  # fmt: skip
    for kind, name in formats.items():
        write(schedule, found[kind], format=name, overwrite=True)
    write(problem.topology, found["topology"], format="taccl-topology", overwrite=True)
    taccl.save(problem.topology, found["saved topology"], overwrite=True)
    taccl.save(problem, found["problem"], overwrite=True)
    save_workload(block(), folder / "step.toml")
    few = {"sizes": ["1KB", "1MB"], "backend": "greedy", "baselines": False}
    brief_plan("ring:4", "allgather", **few).save(folder / "plan")
    taccl.Probe(("a", "b"), latency_us=[[0, 5], [5, 0]]).save(folder / "probe.json")
    found["sketch"].write_text('schema = 1\nmachine = "ndv2"\n[routing]\nslack = 1\n')
    log = (
        "# all_reduce_perf\n"
        + "#       size         count      type   redop    root     time   algbw   busbw\n"
    )
    rates = [(size, 20 + size / 2e5) for size in (4**n for n in range(5, 15))]
    rows = [
        f"{size} {size // 4} float sum -1 {us:.2f} {size / us / 1e3:.2f} {1.75 * size / us / 1e3:.2f} 0"
        for size, us in rates
    ]
    found["log of nccl-tests or rccl-tests"].write_text(log + "\n".join(rows) + "\n")
    with quick_fits():
        fit = taccl.fit([str(found["log of nccl-tests or rccl-tests"])], "dgx-h100")
    found["profile"].write_text(fit.to_toml(accept=True))
    others = {
        "workload": folder / "step.toml", "plan": folder / "plan" / "plan.json", "probe": folder / "probe.json",
        "upstream topology": OURS / "upstream-taccl/topo/ndv2-2MB.json",
        "upstream sketch": OURS / "upstream-taccl/sketch/ndv2-n2.json",
        "NCCL topology": OURS / "nccl-topo/two-cpus-topo.xml", "ASTRA-sim network": OURS / "astra-sim/ring-3.yml",
        "matrix of pairs": OURS / "pair-matrix/p2p.txt",
    }  # fmt: skip
    return {**found, **others}


def _advised(err):
    """Commands between backticks in a message that start no processes, with placeholders replaced."""
    for command in re.findall(r"`(taccl [^`]*)`", err):
        if (
            not command.startswith(_NOT_RUN)
            and "--verify" not in command
            and "FILE" not in command
            and " IN OUT" not in command
        ):
            command = command.replace("--collective NAME", "--collective allreduce")
            yield command.replace(" MACHINE", " dgx-h100").replace(" NAME", " ring:4")


@pytest.mark.parametrize("verb", VERBS)
def test_every_kind_is_read_or_named_with_advice_that_works(run, files, tried, tmp_path, monkeypatch, verb):
    """For any file a verb ends without an internal error, names the file, and gives advice that works.

    Each verb gets a sixth of the kinds of files, or all of them with ``TACCL_MANY=1``.
    """
    monkeypatch.chdir(tmp_path)
    wrong = []
    turn = 0 if MANY else list(VERBS).index(verb) % 6
    for kind, path in thinned(list(files.items())[turn:], every=6):
        place = {"file": path, "out": tmp_path / "out", "schedule": files["schedule"]}
        code, _, err = run(*(word.format(**place) for word in shlex.split(VERBS[verb])))
        if code == 0:
            continue
        last = err.strip().splitlines()[-1]
        is_named = any(name in last for name in (str(path), str(place["out"]), "error: --"))
        if code not in (1, 2) or (code == 2 and not is_named):
            wrong.append(f"{kind}: {code}: {last}")
        for command in _advised(last):
            if command not in tried:
                tried.add(command)
                advised = run(*shlex.split(command.replace("OUT.json", "OUT.json --overwrite"))[1:])
                # A fit may read the log and find that no machine of that kind can have produced it.
                if advised[0] != 0 and not (command.startswith("taccl fit") and advised[0] == 1):
                    wrong.append(f"{kind}: {command}: {advised[2].strip()}")
    assert "\n".join(wrong) == ""


@pytest.mark.parametrize("verb", ["show", "--topology", "convert", "fit", "reorder", "verify", "--measured"])
def test_outputs_of_other_tools_are_named_by_every_verb(run, files, tmp_path, verb):
    """Every verb that does not read a file of another tool names the tool."""
    for kind in (each for each in TEXTS if each.startswith(("output", "debug", "graph"))):
        place = {"file": files[kind], "out": tmp_path / "out", "schedule": files["schedule"]}
        code, _, err = run(*(word.format(**place) for word in shlex.split(VERBS[verb])))
        assert code == 0 or f"found {a(kind)}" in err
        assert code in (0, 2), kind


@pytest.mark.parametrize("command", [VERBS["bound"], VERBS["--topology"], *ON_TOPOLOGIES])
def test_folders_and_missing_files_are_named_as_such(run, tmp_path, command):
    """A folder or a missing file in place of a topology is not called an unknown machine."""
    (tmp_path / "a.log").write_text("")
    for path, fault in (
        (tmp_path, "is a folder; give the path of a file"),
        (tmp_path / "none.json", "there is no such file; check the path"),
    ):
        words = (word.format(file=path, log=tmp_path / "a.log") for word in shlex.split(command))
        assert run(*words) == (2, "", f"taccl: error: {path}: {fault}\n")
