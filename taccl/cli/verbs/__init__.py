"""Verbs of the command line: ``add(verb)`` declares the options of a verb, ``run(options)`` runs it.

In modules of several verbs, these functions end in the name of the verb (`SHARED`). The docstring of `run` is
the help of the verb, which ends with the verb's lines of ``EXAMPLES``. Heavy modules are imported inside
`run`.
"""

from __future__ import annotations

#: All verbs, in the order of ``taccl --help``.
VERBS = (
    "synthesize", "verify", "show", "simulate", "bound", "explain", "suggest", "baseline", "convert", "run",
    "plan", "fit", "diagnose", "probe", "reorder", "backends", "compare", "sweep", "cache", "warmup", "plot",
    "report",
)  # fmt: skip

#: {verb: module}, for verbs in a module of another verb.
SHARED = {
    "backends": "installation",
    "cache": "installation",
    "diagnose": "fit",
    "explain": "suggest",
    "report": "plot",
    "sweep": "compare",
    "warmup": "installation",
}

EXAMPLES = """
taccl synthesize ndv2/sk1 --collective allgather --size 16MB -o schedule.json
taccl synthesize dgx-a100 --nodes 2 --collective allreduce --size 64MB --time-limit 60
taccl verify schedule.json
taccl verify program.xml
taccl show schedule.json --transfers 40
taccl show ndv2 --nodes 2 --profile nominal
taccl simulate schedule.json --sizes 1MB,16MB,256MB
taccl simulate program.xml --topology ndv2 --nodes 2 --size 16MB
taccl bound schedule.json
taccl bound dgx2 --nodes 2 --collective allreduce --size 64MB --check
taccl explain sketch.toml --collective allgather
taccl explain ndv2/sk1 --collective alltoall --time-limit 60
taccl suggest ndv2 --nodes 2 --collective allgather --size 16MB -o sketches
taccl suggest ndv2 --nodes 2 --collective allgather --check sketch.toml
taccl baseline nccl dgx-h100 --nodes 2 --collective allreduce --size 1MB
taccl baseline best ring:8 --collective allgather --size 1MB -o best.json
taccl convert schedule.json program.xml --set instances=2
taccl convert schedule.json program.plan.json --set max_bytes=1GB
taccl run schedule.json --size 1MB
taccl run program.xml --ranks 16 --repetitions 20
taccl run step.toml --topology dgx-a100
taccl plan --topology dgx2 --collective allreduce --sizes 1KB:1GB -o plan
taccl plan ndv2/sk1 ndv2/sk2 --collective allgather --time-limit 300 -o allgather-plan
taccl fit nccl.log --topology dgx-h100 --nodes 2 -o mine.toml
taccl fit one.log two.log --topology dgx-h100 --nodes 2 --plot fit.svg
taccl diagnose nccl.log
taccl diagnose nccl.log --topology dgx-h100 --profile mine.toml -o diagnosis.html
taccl probe -n 8 -o probe.json
taccl probe -n 16 --rounds 5 -o probe.json
taccl probe --collectives --mpiexec 'mpiexec -f hosts -n 16' -o selection.json
taccl reorder probe.json --algorithm ring --size 100MB --hostfile hosts.new
taccl reorder latency.csv --collective alltoall --algorithm pairwise --hosts hosts --rankfile ranks
taccl backends
taccl backends --json
taccl compare ndv2/sk1 --collective allgather --backends greedy,highs -o table.csv
taccl compare ring:8 --collective allreduce --size 1MB --seeds 0:3
taccl sweep ndv2 --nodes 2 --collective allgather --sketches ndv2/sk1,ndv2/sk2 --sizes 1KB:1MB
taccl sweep ring:8 --collective allgather --sizes 1MB --chunks-per-rank 1,2,4 -o table.csv
taccl cache info
taccl cache clear
taccl warmup
taccl warmup --json
taccl plot schedule.json --by rank -o gantt.svg
taccl plot dgx2 --what topology --nodes 2 -o dgx2.png
taccl report schedule.json -o report.html
taccl report schedule.json --time-limit 60 -o report.html --overwrite
"""
