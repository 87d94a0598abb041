"""Commands that are refused: exit code 2, one sentence with the option or file at fault, and no file touched."""

import shlex

import pytest

import taccl
from taccl.workload import save_workload
from tests.cli.words import SKETCH, SMALL
from tests.foreign import OURS
from tests.measure.logs import table
from tests.workload.test_replay import block

SMALL = " ".join(SMALL)
GATHER = "--collective allgather --size"
FULL = "--topology fully-connected:4"
MESH = f"synthesize --topology mesh:25x25 {GATHER} 1MB --backend greedy"
NDV2 = "suggest ndv2 --nodes 2 --collective allgather"
SUITED = f"{GATHER} 4KB --chunks-per-rank 1 --backends greedy"
DGX2 = "--topology dgx2"

#: {title: (command, part of its error message)}; commands run in a folder with the files of `folder` below.
REFUSED = {
    "no verb, or an unknown one": [
        ("", "VERB: found none; give one of synthesize, verify, "),
        ("cache", "action: found none; give one of info, clear (see taccl cache --help)"),
        ("nosuch", "VERB: found 'nosuch'"),
        ("synthesise", "VERB: found 'synthesise'; expected one of synthesize, verify"),
    ],
    "words and options": [
        ("--nosuch", "--nosuch"),
        ("--nosuch bound", "there is no option --nosuch before the verb"),
        ("--verison", "there is no option --verison; did you mean '--version'?"),
        ("suggest ring:4 --collective allgather --check", "--check: found no value; give one"),
        ("report schedule.json -o r.pdf", "r.pdf: found the ending '.pdf'; the output is a page in HTML"),
        ("diagnose all.log -o d.pdf", "d.pdf: found the ending '.pdf'; the output is a page in HTML"),
        ("fit all.log --topology dgx-h100 -o p.json", "p.json: found the ending '.json'; a profile is saved as TOML"),
        ("plot sketch.toml -o a.svg", "found a sketch; expected a schedule; `taccl show sketch.toml` reads it"),
        ("verify sketch.toml", "found a sketch; expected a schedule or a program; `taccl show sketch.toml` reads it"),
        ("synthesize --topology ring:4 --collective alltoallv --matrix zip:1", "--matrix: found 'zip:1', which is no file; expected a CSV or .npy"),
        ("synthesize allgather ndv2", "--collective: found none; give one (see taccl synthesize --help)"),
        ("plot schedule.json", "-o/--output: found none; give one"),
        ("run schedule.json --runtime nccl", "there is no option --runtime (see taccl run --help)"),
        ("baseline ring:4 ring --collective allgather", "NAME: found 'ring:4'; the baseline comes first: taccl baseline ring ring:4"),
        ("show a b", "found 'b' after all arguments; leave it out (see taccl show --help)"),
        ("show ring:4 --node 2", "there is no option --node; did you mean '--nodes'?"),
        ("suggest --topology dgx2", "there is no option --topology; give its value alone: taccl suggest TOPOLOGY"),
        ("bound --colective=allgather", "there is no option --colective; did you mean '--collective'?"),
    ],
    "the problem": [
        ("bound ndv2/sk1 --topology dgx-h100 --collective allgather", "machine: found 'ndv2', but the topology dgx-h100"),
        (f"synthesize {SMALL} -o new.xml", "new.xml: a schedule is saved as JSON; give a name that ends in .json"),
        ("plan ndv2 ndv2/sk1 --collective allgather", "ndv2: found a topology; expected a sketch; leave it out"),
        ("baseline ndv2/sk1 --collective allgather", "NAME: found 'ndv2/sk1'; expected one of ring, "),
        (f"baseline ring {SMALL} -o new.csv", "give a name that ends in .json (taccl convert then writes .csv)"),
        (f"synthesize {SMALL} --backend highs --policy lp", "--policy: found with the backend highs; it is for dimension-"),
        (f"baseline ring {SMALL} --no-nvls", "--no-nvls: found with ring; it is for nccl: leave it out"),
        ("plan ring:4 --collective allgather --sizes 1KB --runtime torch --protocol ll", "by none: leave it out"),
        (f"synthesize {SMALL} --memory-limit 4", "--memory-limit: found 4B; expected at least 1MB, e.g. 4GB"),
        (f"synthesize {SMALL} --spill new", "--spill: only the compiled list scheduler spills"),
        ("bound ring:4 --size 1MB", "--collective: found none"),
        ("bound --collective allgather", "neither a sketch nor --topology"),
        (f"bound {SMALL} --chunk-size 1KB", "not allowed with argument"),
        (f"bound {SMALL} --cost-model upstream", "needs a topology file of the published TACCL tool"),
        (f"bound {SMALL} --time-unit-us 2", "needs a topology file of the published TACCL tool"),
        (f"bound {SMALL} --profile nominal", "a fabric has no profiles"),
        ("bound --topology dgx2:4 --collective allgather", "dgx2 takes no size: give the number of nodes as --nodes 4"),
        ("show ndv2:2", "ndv2 takes no size: give the number of nodes as --nodes 2"),
        (f"bound --topology ring:0 {GATHER} 1MB", "ring: num_ranks: found 0; expected a whole number of at least 2"),
        (f"bound --topology torus:4x0 {GATHER} 1MB", "torus: dims: found 0; expected a whole number of at least 1"),
        (f"bound {SMALL} --root 1", "--root: allgather has no root"),
        (f"bound {SMALL} --root x", "--root: found 'x'; expected a whole number of at least 0"),
        (f"bound {SMALL} --nodes 0", "--nodes: found '0'; expected a positive whole number"),
        (f"bound {SMALL} --nodes -3", "--nodes: found '-3'; expected a positive whole number"),
        (f"bound {SMALL} --nodes {'9' * 5000}", "expected a positive whole number"),
        (f"bound {SMALL} --roots x", "expected root ranks such as 0,4"),
        (f"bound {SMALL} --counts 1,2", "--counts: allgather has no counts"),
        ("bound --topology ring:4 --collective allgatherv --size 4", "--counts: allgatherv needs counts"),
        ("sweep ring:4 --collective allgatherv --sizes 4KB --counts 1,2", "--counts: found 2 numbers; expected one for each"),
        ("plan ring:4 --collective multi-root-gather", "--roots: multi-root-gather needs roots"),
        ("suggest ndv2 --collective broadcast --size 4KB --root 9", "rank 9"),
        ("plan ring:4 --collective alltoallv --matrix zipf:1 --root 1", "--root: alltoallv takes none"),
        ("bound --topology ring:4 --collective allgathr --size 4", "did you mean 'allgather'?"),
        (f"bound --topology ring:4 {GATHER} 4XB", "found '4XB'; expected a size such as '512B'"),
        (f"bound --topology ring:4 {GATHER} 0", "--size: found '0', which is 0 bytes"),
        (f"bound --topology ring:4 {GATHER} 1.5", "which is 1.5 bytes"),
        (f"bound --topology ring:4 {GATHER} {'9' * 30}", "less than 2**62 bytes"),
        (f"bound {SMALL} --size -5MB", "--size: found '-5MB'; expected a size such as"),
        (f"bound {SMALL} --chunks-per-rank 999999999", "3999999996 in all; expected at most"),
        ("bound nosuch.toml --collective allgather", "no such file"),
        (f"bound --topology sketch.toml {GATHER} 4", "found a sketch; expected a topology"),
        ("explain schedule.json --collective allgather", "found a schedule; expected a sketch"),
        (f"bound --topology ndv2.toml {GATHER} 16MB --nodes 3", "found --nodes 3, but the topology has 2"),
    ],
    "synthesize": [
        (f"synthesize {SMALL} --backend hihgs", "hihgs"),
        (f"synthesize {SMALL} --seed x", "--seed: found 'x'; expected a whole number of at least 0"),
        (f"synthesize {SMALL} --seed -1", "--seed: found '-1'; expected a whole number of at least 0"),
        (f"synthesize {SMALL} --seed 1.5", "--seed: found '1.5'; expected a whole number of at least 0"),
        (f"{MESH} --summary -o x.json", "--output"),
        (f"{MESH} --spill columns -o x.json", "--output"),
        (f"{MESH} --memory-limit 10MB", "error: --memory-limit: allgather on mesh:25x25 would take"),
    ],
    "baseline": [
        ("baseline", "NAME: "),
        ("baseline ring", "--collective: found none"),
        (f"baseline nosuch {SMALL}", "found 'nosuch'"),
        (f"baseline rnig {SMALL}", "did you mean 'ring'?"),
        ("baseline ring --topology ring:4 --collective alltoall --size 4", "pairwise"),
        (f"baseline ring --topology ndv2 {GATHER} 1MB --protocol ll", "has no protocols: leave it out"),
    ],
    "folders": [
        *(
            (f"{command} {path}", message)
            for command in (
                "plan ring:4 --collective allgather -o", f"suggest ring:4 {GATHER} 1MB -o", f"synthesize {SMALL} --spill",
            )
            for path, message in {
                "-": "-: is not a folder; give the path of a folder, or ./- for this name",
                "''": "output: found an empty path; give the path of a folder",
            }.items()
        ),
        (f"{NDV2} --size 1MB -o schedule.json", "schedule.json: is not a folder"),
    ],
    "names in place of a sketch": [
        (f"synthesize dgx-h1000 {GATHER} 1MB", "no shipped sketch, machine or fabric of that name"),
        (f"synthesize dgx-h1000 {GATHER} 1MB", "did you mean 'dgx-h100'?"),
        (f"bound dgx-h10 {GATHER} 1MB", "did you mean 'dgx-h100'?"),
        (f"synthesize ndv2/sk9 {GATHER} 1MB", "did you mean 'ndv2/sk1'?"),
        (f"synthesize rinq:8 {GATHER} 1MB", "did you mean 'ring'?"),
        (f"synthesize zzzzqq {GATHER} 1MB", "and machines are ndv2"),
        (f"synthesize dgx-h1000 --topology ndv2 {GATHER} 1MB", "no shipped sketch of that name"),
        ("plan dgx-h1000 --collective allgather --sizes 1KB", "did you mean 'dgx-h100'?"),
    ],
    "empty paths": [
        ("verify ''", "'': there is no such file; check the path"),
        ("show schedule.json --transfers 2 ''", "found '' after all arguments"),
        (f"bound '' {GATHER} 1MB", "'': found no such file, and no shipped sketch"),
        (f"synthesize {SMALL} --start ''", "'': there is no such file; check the path"),
        (f"synthesize {SMALL} --parameters ''", "'': there is no such file; check the path"),
        ("convert schedule.json ''", "'': its ending names no format"),
    ],
    "verify and show": [
        ("verify schedule.json --chunk-size 1KB", "--chunk-size: a schedule in taccl's own format contains it"),
        ("verify direct.xml --topology ring:5", "--topology: found a program, which is checked on any topology"),
        ("verify direct.xml --chunk-size 1KB", "--chunk-size: found a program, which is checked on any topology"),
        ("show schedule.json --nodes 2", "leave it out"),
        ("show schedule.json --transfers x", "expected a number of rows"),
        ("show sketch.toml --profile nominal", "leave it out"),
        ("show nosuch", "found 'nosuch'; expected a machine"),
        ("show nosuch", "no file or shipped sketch has this name"),
        ("show schedule.jsn", "no file, shipped sketch, machine or fabric has this name; did you mean 'schedule.json'?"),
        ("show ndv2/nosuch", "ndv2/nosuch: found no such file and no shipped sketch of that name"),
        ("show nosuch.toml", "nosuch.toml: there is no such file"),
        ("show torus:4x4 --protocol ll", "has no protocols: leave it out"),
    ],
    "simulate": [
        ("simulate schedule.json --sizes 1XB", "--sizes: found '1XB'"),
        ("simulate schedule.json --jitter 1", "--jitter: found '1'; expected a number of at least 0 and below 1"),
        ("simulate schedule.json --jitter x", "--jitter: found 'x'"),
        ("simulate schedule.json --tiles 0", "--tiles: found '0'; expected a positive whole number"),
        ("simulate schedule.json --profile nominal", "--profile: "),
    ],
    "programs": [
        ("simulate direct.xml", "--topology: a program has no topology"),
        (f"simulate direct.xml {FULL}", "--size: a program has no size of its own"),
        (f"simulate direct.xml {FULL} --size 1MB --tiles 2", "--tiles: found a program"),
        ("simulate direct.xml --topology ring:4 --size 1MB", "from rank 0 to rank 2"),
        ("simulate direct.xml --topology ring:5 --size 1MB", "for 4 ranks"),
        ("bound direct.xml --topology ring:4 --size 1MB", "has no such link"),
        ("bound direct.xml --collective allgather", "--collective: a program contains it"),
        ("show direct.xml --nodes 2", "--nodes: found a program"),
        ("convert direct.xml out.json", "--topology: found a program"),
        ("plot direct.xml -o a.svg", "taccl convert direct.xml OUT.json --topology"),
        ("report direct.xml -o a.html", "taccl convert direct.xml OUT.json --topology"),
    ],
    "plan": [
        ("plan ndv2/sk9 --collective allgather", "did you mean"),
        ("plan --collective allgather", "neither a sketch nor --topology"),
        ("plan ndv2/sk1 --nodes 2 --collective allgather --ranks 0-3", "a sketch covers all ranks"),
        ("plan ring:4 --collective allsheep", "--collective: found 'allsheep'"),
        ("plan ring:4 --collective allgather --sizes 1GB:1KB", "--sizes: found '1GB:1KB'"),
        ("plan ring:4 --collective allgather -o no/such/folder", "there is no folder"),
        ("plan ring:2 --collective allgather --instances some", "--instances: found 'some'"),
        (
            "plan --topology ring:2 --collective allgather --in-place --out-of-place",
            "--out-of-place: found with --in-place",
        ),
    ],
    "convert": [
        ("convert", "IN: found none"),
        ("convert schedule.json", "OUT: found none"),
        ("convert schedule.json x.docx", ".py; else give the format as --to=NAME"),
        ("convert schedule.json x --to perfeto", "; did you mean 'perfetto'?"),
        ("convert schedule.json x.csv --from word", "--from: found 'word'"),
        ("convert schedule.json x.csv --set colour", "--set: found 'colour'; expected NAME=VALUE"),
        ("convert schedule.json x.csv --set colour=red", "--set: neither taccl-schedule nor csv has an option 'colour'"),
        (
            "convert schedule.json x.plan.json --set ranks-per-node=3",
            "ranks_per_node: found 3 for 4 ranks; expected a divisor of their number",
        ),
        ("convert schedule.json x.xml --set chanels=2", "runtime; did you mean 'channels'?"),
        ("plan ring:4 --collective allreduce --sizes 1MB..1GB", "--sizes: found '1MB..1GB'; expected a range such as '1KB:1GB', or"),
        ("sweep ring:4 --collective allreduce --sizes 1MB-1GB", "--sizes: found '1MB-1GB'; expected sizes such as 1KB,1MB, or"),
        (
            "convert schedule.json x.csv --chunk-size 1KB",
            "--chunk-size: schedule.json is neither a program nor an algorithm; leave it out",
        ),
        ("convert missing.json x.csv", "missing.json: there is no such file"),
        ("convert schedule.json schedule.json --to csv", "the file exists; pass --overwrite"),
        (
            "convert schedule.json x.xml --set max_bytes=1XB",
            "max_bytes: found '1XB'; expected a size",
        ),
    ],
    "compare, sweep and cache": [
        (f"compare ring:4 {SUITED} -o table.xlsx", "expected .csv or .json"),
        *((f"compare ring:4 {SUITED} --seeds={seeds}", "--seeds") for seeds in ("a", "3:3", "1,,2", "-1", "0:2:3")),
        *(
            (f"sweep ring:4 --collective allgather --backends greedy --sizes={sizes}", "--sizes")
            for sizes in ("1XB", "1MB:1KB", "1KB:1MB:1", "1KB:1MB:2:3", "1KB:1MB:x", ":", "''")
        ),
        ("sweep dgx2 --collective allgather --protocol ll128", "has no protocols: leave it out"),
        ("cache empty", "found 'empty'"),
    ],
    "suggest": [
        (f"{NDV2} --size lots", "found 'lots'"),
        (f"suggest nowhere {GATHER} 1MB", "error: topology: found"),
        ("suggest ring:4 --collective everyone --size 1MB", "everyone"),
        (f"{NDV2} --size 1MB -o folder --best", "--best"),
    ],
    "reorder and probe": [
        ("reorder latency.csv --verify", "latency.csv: found a matrix of pairs; expected a placement, which -o writes"),
        ("reorder latency.csv --launcher slurm", "--launcher: found without --hostfile; give both, or leave it out"),
        ("reorder latency.csv --mpich-base x", "--mpich-base: found without --mpich-selection; give both"),
        ("reorder latency.csv --hosts few", "--hosts: found 3 slots for 4 ranks"),
        ("reorder latency.csv --hosts none", "there is no such file"),
        ("reorder latency.csv --algorithm rong", "--algorithm: found 'rong'"),
        ("reorder latency.csv --oversubscription 0", "expected a number of at least 1"),
        ("reorder latency.csv --plot x.txt", "x.txt"),
        ("reorder latency.csv --hostfile few", "the file exists"),
        # A host file with two slots on each host would assign the figures of host b to the second slot of a.
        ("reorder latency.csv --hosts twice", "found slot 1 on a, and row 1 of the figures is of b"),
        ("reorder latency.csv --hosts domain", "found slot 0 on b.example, and row 0 of the figures is of a"),
        ("reorder ring:4 --hostfile hosts", "found no names of hosts; give them with --hosts"),
        ("reorder ring:4 --bandwidth 3", "--bandwidth: a topology contains it"),
        ("probe -o probe.json", "--ranks: found none; expected two ranks or more"),
        ("probe -n 1000000 -o probe.json", "--ranks: found 1000000 to start here; expected at most 1024"),
    ],
    "plot, report and fit": [
        ("plot x -o y.svg --what gant", "--what: found 'gant'; expected one of gantt"),
        ("plot ring:4 --what gantt -o a.svg", "ring:4: found a topology"),
        ("plot ring:4 --what gantt -o a.svg", "--what topology"),
        ("plot schedule.json --what topology --by rank -o a.svg", "--by"),
        ("plot schedule.json --what topology --by rank -o a.svg", "--what gantt"),
        ("plot schedule.json -o old.svg", "--overwrite"),
        ("report schedule.json -o old.html", "--overwrite"),
        ("plot schedule.json -o a.gif", ".svg"),
        ("fit few --topology dgx-h100 -o mine.toml", "found no usable measurement"),
    ],
    "diagnose and subsets of ranks": [
        ("diagnose few", "found no usable measurement"),
        ("diagnose nosuch.log", "no such file"),
        ("diagnose unnamed.log", "found no GPUs in the log; give a topology file, such as"),
        ("diagnose unnamed.log --topology dgx-h10", "did you mean 'dgx-h100'?"),
        ("diagnose unnamed.log --topology dgx-h100 --ranks 0-3", "found 8 ranks; dgx-h100 x1 has 4 here"),
        ("diagnose unnamed.log --topology dgx-h100 --ranks 8", "rank 8 does not exist"),
        ("diagnose unnamed.log --topology dgx-h100 --ranks x", "--ranks: found 'x'; expected ranks such as"),
        ("diagnose unnamed.log --topology dgx-h100 -o old.html", "old.html"),
        (f"synthesize {DGX2} {GATHER} 1MB --ranks 3-1", "--ranks: found '3-1'; expected ranks such as"),
        (f"synthesize {DGX2} {GATHER} 1MB --ranks 3,1", "--ranks: found '3,1'; expected ranks such as 0-3,8, each once, in"),
        (f"synthesize {DGX2} {GATHER} 1MB --without-rank 1,1", "--without-rank: found '1,1'; expected ranks such as"),
        (f"synthesize {DGX2} {GATHER} 1MB --without-rank 16", "rank 16 does not exist"),
        (f"bound ndv2/sk1 {GATHER} 1MB --ranks 0-3", "--ranks: a sketch covers all ranks"),
    ],
    "run": [
        ("run step.toml", "found a workload; expected a schedule or a program; `taccl run "),
        ("run step.toml --topology ring:3", "block: is of 4 ranks, and ring:3 has 3; make them equal"),
        ("run step.toml --topology fully_connected:4 --tflops 5", "--gb-per-s: found none beside tflops"),
        ("run step.toml --tflops 5", "--tflops: is for a step on a topology; give --topology"),
        ("run step.toml --topology fully_connected:4 --step-s 1", "give --tflops ... and --gb-per-s ..."),
        (
            "convert step.toml out.py --to torch --topology fully_connected:4",
            "give tflops=... and gb_per_s=...; --set NAME=VALUE sets each",
        ),
        ("run step.toml --topology fully_connected:4 --size 1MB", "--size: a step states it itself; leave it out"),
        ("run step.toml --topology fully_connected:4 --in-place", "--in-place: a step starts its own ranks"),
        (
            "run schedule.json --topology ring:4",
            "--topology: found a schedule; --topology is for a workload; leave it out",
        ),
    ],
}  # fmt: skip
#: (command that would take very long, part of its error): refused before any work, with the number found.
ENDLESS = [
    *(
        (f"synthesize --topology {fabric} --chunk-size 1MB --backend greedy --memory-limit 20GB", message)
        for fabric, message in (
            ("mesh:1000001x1000001 --collective allgather", "links; expected at most"),
            ("ring:1000000000000 --collective allgather", "found '1000000000000'"),
            ("mesh:301x301 --collective allgather", "needs at least 8,200,000,000 transfers and 82.1GB"),
            ("mesh:101x101 --collective alltoall", "104060401 in all"),
            ("fully-connected:100000 --collective broadcast", "links; expected at most"),
        )
    ),
    (
        "synthesize --topology ring:1000000 --collective broadcast --size 1MB",
        "found 2000000 links; expected at most 1000000",
    ),
    (
        "explain --topology ring:2300 --collective alltoall --size 1MB",
        "5290000 in all; expected at most 5000000",
    ),
    (f"baseline pairwise --topology ring:2300 {GATHER} 1MB", "needs at least 5287700 transfers"),
    # 300 * 300 chunks travel 75 links each on average.
    (
        "baseline pairwise --topology ring:300 --collective alltoall --size 1MB",
        "needs at least 6750000 transfers",
    ),
    (f"compare --topology ring:4 {GATHER} 1MB --seeds 0:100000000", "found more than 1000000 in range(0"),
    (f"compare --topology ring:4 {GATHER} 1MB --seeds 0:100000", "found 600000 runs or more"),
    (
        "sweep ring:4 --collective allgather --sizes 1MB --seeds 0:200000",
        "--seeds: found 200000 runs or more",
    ),
    (f"compare ring:4 {SUITED} --backends greedy,cbd", "--backends: found 'cbd'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with valid input files of each kind, and existing output files."""
    folder = tmp_path_factory.mktemp("files")
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4000)
    taccl.save(taccl.baselines.baseline("ring", problem), folder / "schedule.json")
    save_workload(block(), folder / "step.toml")
    texts = {
        "sketch.toml": SKETCH,
        "ndv2.toml": 'schema = 1\nmachine = "ndv2"\nnodes = 2\n',
        "direct.xml": (OURS / "msccl-xml" / "allgather-4-direct.xml").read_text(),
        "latency.csv": "us,a,b,c,d\na,0,20,10,20\nb,20,0,20,10\nc,10,20,0,20\nd,20,10,20,0\n",
        "few": "a\nb\nc\n",
        "unnamed.log": table(sizes=(2**20, 2**30)),
        "domain": "b.example\na.example\nc.example\nd.example\n",
        "twice": "a:2\nb:2\nc:2\nd:2\n",
        "old.svg": "mine",
        "old.html": "mine",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(pytest.param(*row, id=row[0][:80]) for rows in REFUSED.values() for row in rows),
        *(pytest.param(*row, id=row[0][:80], marks=pytest.mark.slow) for row in ENDLESS),
    ],
)
def test_command_is_refused_in_one_sentence(run, folder, monkeypatch, words, message):
    """Stdout is empty, stderr has one sentence (after at most one warning), and no file changes."""
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run(*shlex.split(words))
    *warned, said = err.splitlines()
    assert (code, out, said.startswith("taccl: error: ")) == (2, "", True), err
    assert not warned or "latency.csv: 3 assumptions" in warned.pop()
    assert not warned
    assert message in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
