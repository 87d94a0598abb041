"""Files for launchers; each is read by the real launcher, or by a parser written from its documentation."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

import taccl
from taccl.errors import FormatError, InputError
from taccl.placement.case import Case
from taccl.placement.launchers import (
    _SEQUENTIALLY,
    as_launched,
    caveats,
    command,
    hostfile,
    rankfile,
    read_hosts,
)
from taccl.placement.placement import Placement
from tests.effort import cpu_s
from tests.placement.test_files import OPENMPI, ROOT, needs_openmpi, said

#: Print a rank, its local rank, its host, and the cores that it may run on.
TELL = """
import os
names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK"), ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"), ("PMI_HOSTNAME",)
words = [next((os.environ[each] for each in some if each in os.environ), "-") for some in names]
os.write(1, (" ".join(words) + " " + ",".join(map(str, sorted(os.sched_getaffinity(0)))) + "\\n").encode())
"""
#: Hosts of four slots: all different; two hosts, one after the other; and two hosts alternately.
HOSTS = {"once": "abcd", "in a row": "aabb", "in turns": "abab"}


@pytest.fixture(scope="module")
def placement():
    """Placement of four ranks on slots 2, 0, 3 and 1."""
    topology = taccl.topologies.ring(4)
    case = Case(topology, "allreduce", "ring", "1MB")
    return Placement(topology, case.algorithm, 10**6, (2, 0, 3, 1), 2.0, 1.0, 1.0)


def placed(placement, hosts):
    """Host of every rank."""
    return [hosts[slot] for slot in placement.order]


class TestHosts:
    """Host files, which list the hosts in their present order."""

    def test_hosts_are_read(self, tmp_path):
        """Names and slots are read; comments and empty lines are ignored."""
        path = tmp_path / "hosts"
        path.write_text("# ours\na:2\n\nb  # the other\n")
        assert read_hosts(path) == ["a", "a", "b"]

    def test_slots_of_open_mpi_are_read(self, tmp_path):
        """Host files of Open MPI and DeepSpeed have `slots=`, optionally with a maximum."""
        path = tmp_path / "hosts"
        path.write_text("a slots=2\nb slots = 1 max_slots=4  # the other\n")
        assert read_hosts(path) == ["a", "a", "b"]

    @pytest.mark.parametrize(
        ("text", "hosts"),
        [
            ("a\na\nb\nb\n", "aabb"),
            ("a\nb\na\nb\n", "abab"),
            ("a:2,b:2\n", "aabb"),
            ("a-0.x,b-1.x,10.0.0.1\n", ["a-0.x", "b-1.x", "10.0.0.1"]),
            ("# job 7\nn[1-2,4]\n", ["n1", "n2", "n4"]),
            ("n[01-02]:2, b\n", ["n01", "n01", "n02", "n02", "b"]),
            ("a1 a1 b1\n", ["a1", "a1", "b1"]),
            ("a 2 b 1\n", "aab"),
            ("a 2\nb 1\n", "aab"),
            ("a 2 all.q@a UNDEFINED\nb 1 all.q@b <NULL>\n", "aab"),
            ("a cpus=2\nb count=1 max-slots=4\n", "aab"),
        ],
        ids=[
            "PBS_NODEFILE",
            "SLURM_HOSTFILE",
            "mpirun -H",
            "mpirun --host",
            "SLURM_NODELIST",
            "mixed",
            "LSB_HOSTS",
            "LSB_MCPU_HOSTS",
            "bsub -hostfile",
            "PE_HOSTFILE",
            "PRRTE",
        ],
    )
    def test_lists_of_schedulers_are_read(self, tmp_path, text, hosts):
        """A line for each slot, lists with commas, and SLURM's lists with brackets are read and recognised."""
        path = tmp_path / "hosts"
        path.write_text(text)
        assert read_hosts(path) == list(hosts)

    @pytest.mark.parametrize("launcher", ["slurm", "openmpi", "mpich"])
    @pytest.mark.parametrize("hosts", HOSTS.values())
    def test_files_written_are_read(self, tmp_path, placement, hosts, launcher):
        """A host file written for a launcher is read as the hosts of its ranks, unless a host recurs in it."""
        path = tmp_path / "hosts"
        path.write_text(hostfile(placement, list(hosts), launcher))
        if launcher == "mpich" and hosts == "aabb":  # Hydra's lines for b, a, b, a with their numbers
            with pytest.raises(FormatError, match="twice"):
                read_hosts(path)
        else:
            assert read_hosts(path) == placed(placement, hosts)

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("a\nb\na:2\n", "line 3: found host a twice; name it once, with its number of slots: a:3"),
            ("a:8\na:8\n", "line 2: found host a twice; name it once, with its number of slots: a:16"),
            ("me@a slots=8\n", "line 1: found 'me@a slots=8'"),
            ("a\n,\n", "line 2: found ','"),
            ("a:2\nb\na\n", "line 3: found host a twice"),
            ("src,dst\n", "line 1: found 'src,dst'"),
            ("n[4-2]\n", "line 1: found '4-2'"),
            ("a b\n", "line 1: found 'a b'"),
            ("10.0.0.1 a1\n", "line 1: found '10.0.0.1 a1'"),
            ("a:0\n", "line 1: found 'a:0'"),
        ],
    )
    def test_bad_hosts_are_named(self, tmp_path, text, complaint):
        """The error for an invalid host file names the line."""
        path = tmp_path / "hosts"
        path.write_text(text)
        with pytest.raises(FormatError, match=complaint):
            read_hosts(path)

    @pytest.mark.slow
    def test_many_hosts_are_read_in_linear_time(self, tmp_path):
        """20,000 hosts, and a line of many blanks, are read quickly."""
        path = tmp_path / "hosts"
        path.write_text("".join(f"node{i}\n" for i in range(20_000)))
        assert cpu_s(lambda: read_hosts(path)) < 0.5
        path.write_text(f"a{' ' * 20_000}b\n")
        with pytest.raises(FormatError, match="line 1"):
            read_hosts(path)
        assert cpu_s(lambda: pytest.raises(FormatError, read_hosts, path)) < 0.2

    @pytest.mark.parametrize(
        ("hosts", "complaint"),
        [
            (["a"], "found 1 slot for 4 ranks"),
            (["a", "b", "c", "d e"], "found 'd e'; .*give a file with such names"),
        ],
    )
    def test_hosts_that_will_not_do(self, placement, hosts, complaint):
        """Too few hosts, and a host name with a space, are refused."""
        with pytest.raises(InputError, match=complaint):
            hostfile(placement, hosts)


class TestAsLaunched:
    """Orders that a launcher can start."""

    def test_slots_of_a_host_are_taken_in_turn(self, placement):
        """Ranks keep their hosts; on each host they get the slots in ascending order."""
        started = as_launched(placement, list("aabb"))
        assert placed(started, "aabb") == placed(placement, "aabb")
        assert started.order == (2, 0, 3, 1)
        slow = replace(placement, before_us=1e9)
        assert as_launched(slow, list("abba")).order == (1, 0, 3, 2)

    def test_slots_of_one_host_are_no_gain(self, placement):
        """If all ranks share a host, no launcher can change the order, so the given one is kept."""
        started = as_launched(placement, ["vm"] * 4)
        assert started.order == (0, 1, 2, 3)
        assert started.after_us == started.before_us
        assert "nothing to gain" in started.why

    def test_figures_are_those_of_the_order_started(self, placement):
        """The figures are simulated again for the order that is started."""
        case = Case(placement.topology, "allreduce", "ring", "1MB")
        slow = replace(placement, before_us=1e9)
        started = as_launched(slow, list("abba"))
        assert started.after_us == case.us(case.ticks(started.order))


class TestHydra:
    """MPICH's launcher."""

    def test_ranks_of_a_host_share_a_line(self, placement):
        """Rank 0 comes first; consecutive ranks of one host are counted in one line."""
        assert hostfile(placement, list("abcd")) == "c:1\na:1\nd:1\nb:1\n"
        assert hostfile(placement, list("abbb")) == "b:1\na:1\nb:2\n"

    def test_local_ranks_that_repeat_are_reported(self, placement):
        """If a host is in two lines, MPICH starts two proxies there, each of which counts local ranks from 0.
        The caveat then advises a rank map."""
        assert not caveats(placement, list("abcd"), "mpich")
        assert "hosts b:2, a:2 and -rankmap 0,1,0,1" in caveats(placement, list("aabb"), "mpich")[0]

    @pytest.mark.slow
    @pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
    def test_ranks_start_in_that_order(self, placement, mpiexec, tmp_path, hosts):
        """Real ranks report the host for which they were started."""
        path = tmp_path / "hosts"
        path.write_text(hostfile(placement, list(hosts)))
        words = shlex.split(command(placement, list(hosts), "mpich", str(path)))
        out = said(mpiexec, "-launcher", "fork", *words[1:], sys.executable, "-c", TELL)
        found = [line.split() for line in sorted(out.splitlines())]
        assert [host for _, _, host, _ in found] == placed(placement, hosts)

    @pytest.mark.slow
    def test_a_rank_map_keeps_local_ranks(self, mpiexec, placement, tmp_path):
        """The command in the caveat starts the same hosts, with local ranks 0 and 1 on each."""
        hosts = list("aabb")
        advice = re.search(r"hosts (.*) and -rankmap (\S+)", caveats(placement, hosts, "mpich")[0])
        path = tmp_path / "hosts"
        path.write_text(advice[1].replace(", ", "\n") + "\n")
        out = said(
            mpiexec,
            "-launcher",
            "fork",
            "-f",
            path,
            "-rankmap",
            advice[2],
            "-n",
            4,
            sys.executable,
            "-c",
            TELL,
        )
        found = [line.split() for line in sorted(out.splitlines())]
        assert [host for _, _, host, _ in found] == placed(placement, hosts)
        assert [local for _, local, _, _ in found] == ["0", "0", "1", "1"]

    @pytest.mark.slow
    def test_cores_are_as_without_the_file(self, mpiexec, placement, tmp_path):
        """Ranks may run on the same cores as without the file."""
        path = tmp_path / "hosts"
        path.write_text(hostfile(placement, ["localhost"] * 4))
        tell = ("-n", 4, sys.executable, "-c", TELL)
        cores = [
            sorted(line.split()[-1] for line in said(mpiexec, *words, *tell).splitlines())
            for words in ((), ("-f", path))
        ]
        assert cores[0] == cores[1]


class TestOpenMpi:
    """Open MPI's launcher."""

    def test_ranks_of_a_host_are_slots(self, placement):
        """Open MPI's host file has slots if a host's ranks are consecutive; else a line per rank and ``--map-by seq``."""
        assert hostfile(placement, list("abcd"), "openmpi") == "c slots=1\na slots=1\nd slots=1\nb slots=1\n"
        assert hostfile(placement, list("aabb"), "openmpi") == "b\na\nb\na\n"
        assert command(placement, list("abcd"), "openmpi", "f") == "mpirun -n 4 --hostfile f"
        assert command(placement, list("aabb"), "openmpi", "f") == (
            "mpirun -n 4 --hostfile f --map-by seq --bind-to core:if-supported"
        )
        assert "--bind-to none" in caveats(placement, list("aabb"), "openmpi")[0]

    def test_a_rank_file_names_no_core(self, placement):
        """A rank file has no slots, as Open MPI reads the number after `slot` as a core."""
        assert rankfile(placement, list("abbb")) == "rank 0=b\nrank 1=a\nrank 2=b\nrank 3=b\n"

    def mapped(self, *words):
        """Host of every rank, as Open MPI maps them, without starting any."""
        out = said(
            f"{OPENMPI}/bin/mpirun", *words, "--display", "map", "--rtos", "donotlaunch", "true", **ROOT
        )
        found, host = {}, ""
        for line in out.splitlines():
            if node := re.search(r"Data for node: (\S+)", line):
                host = node[1]
            elif proc := re.search(r"Data for proc: \[.*,(\d+)\]", line):
                found[int(proc[1])] = host
        return [found[rank] for rank in range(len(found))]

    @pytest.mark.slow
    @needs_openmpi
    @pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
    def test_ranks_are_mapped_in_that_order(self, placement, tmp_path, hosts):
        """With the host file and its command, or with the rank file, Open MPI maps ranks in the placement's order."""
        path, ranks = tmp_path / "hosts", tmp_path / "ranks"
        path.write_text(hostfile(placement, list(hosts), "openmpi"))
        ranks.write_text(rankfile(placement, list(hosts)))
        words = shlex.split(command(placement, list(hosts), "openmpi", str(path)))
        assert self.mapped(*words[1:]) == placed(placement, hosts)
        assert self.mapped("-n", 4, "--map-by", f"rankfile:FILE={ranks}") == placed(placement, hosts)

    @pytest.mark.slow
    @needs_openmpi
    def test_torn_ranks_have_the_cores_of_a_usual_host_file(self, placement, tmp_path):
        """Ranks of a host that are not consecutive get the same cores as with a usual host file, on servers
        with two packages of four cores."""
        torn, usual = tmp_path / "torn", tmp_path / "usual"
        torn.write_text(hostfile(placement, list("aabb"), "openmpi"))
        usual.write_text("a slots=2\nb slots=2\n")
        words = shlex.split(command(placement, list("aabb"), "openmpi", str(torn)))[1:]
        assert self.bound(*words) == self.bound("-n", 4, "--hostfile", usual)

    def bound(self, *words):
        """{host: cores of each of its ranks}, as Open MPI binds them on servers with two packages of four cores."""
        shown = ("--display", "map,bind", "--rtos", "donotlaunch", "true")
        server = {"HWLOC_SYNTHETIC": "pack:2 numa:1 core:4 pu:2"}
        found = {}
        for line in said(f"{OPENMPI}/bin/mpirun", *words, *shown, **ROOT, **server).splitlines():
            if node := re.search(r"Data for node: (\S+)", line):
                cores = found.setdefault(node[1], [])
            elif place := re.search(r"Binding: (package\S+)", line):
                cores.append(place[1])
        assert all(found.values())
        return found

    @pytest.mark.slow
    @needs_openmpi
    def test_cores_are_as_without_the_file(self, tmp_path):
        """Two real ranks may run on the same cores with and without the host file; with a rank file on all cores."""
        topology = taccl.topologies.ring(2)
        case = Case(topology, "allreduce", "ring", "1MB")
        swapped = Placement(topology, case.algorithm, 10**6, (1, 0), 1.0, 1.0, 1.0)
        path, lines, ranks = (tmp_path / name for name in ("hosts", "lines", "ranks"))
        path.write_text(hostfile(swapped, ["localhost"] * 2, "openmpi"))
        lines.write_text("localhost\nlocalhost\n")
        ranks.write_text(rankfile(swapped, ["localhost"] * 2))
        with_file = shlex.split(command(swapped, ["localhost"] * 2, "openmpi", str(path)))[1:]
        by_lines = shlex.split(command(swapped, ["localhost"] * 2, "openmpi", str(lines)) + _SEQUENTIALLY)[1:]
        cores = [
            [line.split()[-1] for line in sorted(self.started(words).splitlines())]
            for words in (("-n", 2), with_file, by_lines, ("-n", 2, "--map-by", f"rankfile:FILE={ranks}"))
        ]
        assert cores[0] == cores[1] == cores[2]
        assert cores[3] == [",".join(map(str, sorted(os.sched_getaffinity(0))))] * 2

    def started(self, words):
        """Output of the real ranks that a command starts."""
        return said(f"{OPENMPI}/bin/mpirun", *words, sys.executable, "-c", TELL, **ROOT)


class TestSlurm:
    """srun's arbitrary distribution: task r runs on the host in line r of the file that SLURM_HOSTFILE names."""

    @pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
    def test_each_task_has_its_line(self, placement, hosts):
        """The file has a line per task, without counts or comments; srun gets no node count, which it
        refuses.
        """
        assert hostfile(placement, list(hosts), "slurm").split("\n") == [*placed(placement, hosts), ""]
        words = shlex.split(command(placement, list(hosts), "slurm", "my hosts"))
        assert words == ["SLURM_HOSTFILE=my hosts", "srun", "-n", "4", "--distribution=arbitrary"]


class TestTorchrun:
    """torchrun's static rendezvous: rank r runs on node r // nproc_per_node, by --node-rank."""

    def options(self, path, host):
        """Options that the script prints for a host, as in torchrun's documentation."""
        parser = argparse.ArgumentParser()
        for name in ("nnodes", "node-rank", "nproc-per-node"):
            parser.add_argument(f"--{name}", type=int, required=True)
        for name in ("rdzv-backend", "master-addr", "master-port"):
            parser.add_argument(f"--{name}", required=True)
        done = subprocess.run(["sh", path, host], capture_output=True, text=True, check=True)
        return parser.parse_args(done.stdout.split())

    def test_nodes_are_ranked_in_the_new_order(self, placement, tmp_path):
        """The options determine the ranks: ranks of one host are consecutive, and the rendezvous is the host
        of rank 0."""
        pairs = Placement(placement.topology, placement.algorithm, 10**6, (2, 3, 0, 1), 2.0, 1.0, 1.0)
        path = tmp_path / "nodes.sh"
        path.write_text(hostfile(pairs, list("aabb"), "torchrun"))
        found = {host: self.options(path, host) for host in "ab"}
        ranks = {
            each.node_rank * each.nproc_per_node + local: host
            for host, each in found.items()
            for local in range(each.nproc_per_node)
        }
        assert ranks == {0: "b", 1: "b", 2: "a", 3: "a"}
        assert {(e.nnodes, e.rdzv_backend, e.master_addr) for e in found.values()} == {(2, "static", "b")}

    @pytest.mark.parametrize("spelled", ["vm1", "vm1.cluster", "vm1.cluster.example"])
    def test_hosts_are_known_with_and_without_domain(self, placement, tmp_path, spelled):
        """Hosts match with and without domain, as `hostname` prints either."""
        path = tmp_path / "nodes.sh"
        hosts = [f"vm{number}.cluster" for number in range(4)]
        path.write_text(hostfile(placement, hosts, "torchrun"))
        assert self.options(path, spelled).node_rank == 3

    def test_a_host_is_not_taken_for_one_with_a_shorter_name(self, placement, tmp_path):
        """The name of a host may be the beginning of another's, with and without domain."""
        path = tmp_path / "nodes.sh"
        hosts = ["vm1", "vm1.b", "vm11", "vm1.b.c"]
        path.write_text(hostfile(placement, hosts, "torchrun"))
        ranks = placed(placement, hosts)
        assert [self.options(path, host).node_rank for host in ranks] == [0, 1, 2, 3]

    def test_a_host_knows_its_addresses(self, placement, tmp_path):
        """If hosts are addresses, the script finds that of its host among those that `hostname -I` prints."""
        hosts = [f"10.0.0.{number}" for number in range(4)]
        path = tmp_path / "nodes.sh"
        path.write_text(hostfile(placement, hosts, "torchrun"))
        (tmp_path / "hostname").write_text(
            '#!/bin/sh\n[ "$1" = -I ] && echo 172.17.0.1 10.0.0.3 fe80::1 || echo vm3\n'
        )
        (tmp_path / "hostname").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", path], capture_output=True, text=True, check=True, env=environment)
        assert f"--node-rank={placed(placement, hosts).index('10.0.0.3')} " in done.stdout

    def test_a_host_that_is_not_there_gets_none(self, placement, tmp_path):
        """The script fails on a host that is not in its list, and names it."""
        path = tmp_path / "nodes.sh"
        path.write_text(hostfile(placement, list("abcd"), "torchrun"))
        done = subprocess.run(["sh", path, "e"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "e is not one of the hosts" in done.stderr

    def test_ranks_in_turns_are_refused(self, placement):
        """Ranks that alternate between hosts are refused, as torchrun numbers a host's ranks
        consecutively.
        """
        with pytest.raises(
            InputError, match="found non-consecutive ranks of a host, but torchrun numbers them"
        ):
            hostfile(placement, list("aabb"), "torchrun")
