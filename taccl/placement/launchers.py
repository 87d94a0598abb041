"""Files with which Hydra, Open MPI, SLURM and torchrun start ranks on chosen hosts."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from taccl._internal.arguments import checked, known_word
from taccl._internal.names import shown
from taccl._internal.reading import read_text, reads
from taccl._internal.units import format_count
from taccl.errors import FormatError, InputError
from taccl.placement.placement import Placement

LAUNCHERS = ("mpich", "openmpi", "slurm", "torchrun")
#: Number of slots after a host's name, as Open MPI and DeepSpeed write it in host files.
_SLOTS = re.compile(
    r"(?<![ \t])[ \t]+(?:slots?|cpus?|count)[ \t]*=[ \t]*(\d{1,6})([ \t]+max[_-]slots[ \t]*=[ \t]*\d+)?$"
)
#: Fields that Grid Engine writes after a host and its slots: a queue, and a range of processors.
_QUEUE = re.compile(r"\S+@\S+ \S+")
#: One of the hosts between commas, which may itself have commas in brackets.
_LISTED = re.compile(r"(?:[^,\[]|\[[^\]]*(?:\]|$))+")
_NUMBERED = re.compile(r":\d+$|^[A-Za-z].*\d|^\d+(?:\.\d+){3}$")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:\d{1,6})?")
_ADDRESS = re.compile(r"\d+(?:\.\d+){3}(?::\d+)?")
#: Options with which Open MPI makes each line of a host file a rank, bound to a core as usual.
_SEQUENTIALLY = " --map-by seq --bind-to core:if-supported"
#: Port at which torchrun's processes meet; PyTorch's default.
_PORT = 29500
_TORCHRUN = """\
# Prints the options of torchrun for the host that it runs on, or for the host that is named:
#   torchrun $(sh FILE) train.py
# Static rendezvous honours --node-rank; --rdzv-backend=c10d does not, and orders hosts by itself.
for host in ${{1:-{own}}}; do
case "$host" in
{cases}
*) continue ;;
esac
exit
done
echo "$0: $host is not one of the hosts" >&2; exit 1
"""
#: Shell words that print names of the host that a script runs on; if hosts are addresses, the second.
_OWN_NAME, _OWN_ADDRESSES = "$(hostname)", "$(hostname -I 2>/dev/null) $(hostname)"


@checked
@reads("host file")
def read_hosts(path: str | os.PathLike[str]) -> list[str]:
    """Host of every slot, in order, from a file with a line for each host or slot.

    A line is ``name``, ``name:slots``, ``name slots=number`` or ``name number`` (LSF; Grid Engine adds two
    fields, which are ignored). Several hosts may share a line, with commas between them (``mpirun -H``), or
    with blanks (``LSB_HOSTS``, ``LSB_MCPU_HOSTS``). A name may be a list of SLURM such as ``node[01-04]``.
    ``#`` begins a comment. A host without a number may be named again, once for each slot
    (``SLURM_HOSTFILE``, ``PBS_NODEFILE``).

    Raises `FormatError` for any other line, and for a host that is named twice with a number of slots.
    """
    slots: list[str] = []
    counted: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        where = f"{path}: line {number}"
        for item in _items(line.partition("#")[0].strip()):
            word = _SLOTS.sub(r":\1", item)
            listed, _, count = word.partition(":")
            names = [listed] if "[" not in listed else _expanded(listed, where)
            if count == "0" or not all(_HOST.fullmatch(f"{name}{word[len(listed) :]}") for name in names):
                expected = "name, name:slots, name slots=number or name number"
                said = f"found {shown(repr(item), 60)}; expected {expected}"
                raise FormatError(said, where=where)
            for name in names:
                if name in counted and (count or counted[name]):
                    said = f"found host {shown(name, 60)} twice; name it once, with its number of slots"
                    total = (counted[name] or slots.count(name)) + int(count or 1)
                    raise FormatError(f"{said}: {name}:{total}", where=where)
                counted[name] = int(count or 0)
                slots += [name] * int(count or 1)
    return slots


def slots_by_host(hosts: Iterable[str]) -> dict[str, list[int]]:
    """{host: its slots in ascending order}, from the host of every slot."""
    slots: dict[str, list[int]] = {}
    for slot, host in enumerate(hosts):
        slots.setdefault(host, []).append(slot)
    return slots


def _items(line: str) -> list[str]:
    """Entries of a line of a hostfile, without spaces around them.

    The line is split at commas if it has brackets, or if every part has a number (``a:4, b1``). It is split
    at blanks if hosts and numbers of slots alternate, or if every word is a host with a number in its name.
    An address beside names is a line of ``/etc/hosts``, which has one host, and is not split.
    Otherwise all of it is one entry: names without numbers, such as ``src,dst``, are the header of a table.
    """
    words = line.split()
    if len(words) == 4 and words[1].isdigit() and _QUEUE.fullmatch(" ".join(words[2:])):
        words = words[:2]
    if len(words) > 1 and len(words) % 2 == 0 and all(word.isdigit() for word in words[1::2]):
        return [f"{host}:{number}" for host, number in zip(words[::2], words[1::2], strict=True)]
    is_alias = any(map(_ADDRESS.fullmatch, words)) and not all(map(_ADDRESS.fullmatch, words))
    if len(words) > 1 and all(_HOST.fullmatch(word) and _NUMBERED.search(word) for word in words):
        return [line] if is_alias else words
    items = [item.strip() for item in _LISTED.findall(line)]
    is_list = "[" in line or bool(items) and all(_NUMBERED.search(item) for item in items)
    return items if is_list else [line] if line else []


def _expanded(names: str, where: str) -> list[str]:
    """Hosts of a list of SLURM, such as ``node[01-04]``."""
    from taccl.placement.slurm import expand_hosts

    try:
        return list(expand_hosts(names))
    except InputError as error:
        raise FormatError(error.message, where=where) from None


@checked
def as_launched(placement: Placement, hosts: Sequence[str]) -> Placement:
    """The placement as launchers can realise it: the ranks of a host get its slots in ascending order.

    Launchers choose the host of a rank, but neither its core nor its GPU, so an exchange of slots of one host
    has no effect. The changed order is simulated again; the original order is kept if no gain remains.

    Raises `InputError` if there are fewer hosts than ranks.
    """
    from taccl.placement.case import Case

    named = _placed(placement, hosts)
    slots = {host: iter(every) for host, every in slots_by_host(hosts).items()}
    order = tuple(next(slots[host]) for host in named)
    if order == placement.order:
        return placement
    steps = placement.algorithm
    case = Case(placement.hosts, steps.collective.name, steps, placement.size_bytes)
    given = tuple(range(len(order)))
    after = case.us(case.ticks(order, compiled=not case.is_small))
    if after >= placement.before_us:
        order, after = given, placement.before_us
    before, _ = placement.limits
    return replace(
        placement, order=order, after_us=after, proven=after <= placement.bound_us,
        limits=(before, case.limits(order, case.ticks(order, compiled=not case.is_small))),
    )  # fmt: skip


@checked
def hostfile(placement: Placement, hosts: Sequence[str], launcher: str = "mpich") -> str:
    """Text of the file from which a launcher starts each rank on its host; `command` gives the command line.

    The file names no cores.

    Parameters
    ----------
    placement : Placement
        The order of ranks.
    hosts : sequence of str
        The host of every slot.
    launcher : str
        - ``"mpich"``: Hydra's host file, ``name:ranks``.
        - ``"openmpi"``: ``name slots=ranks`` if the ranks of each host follow one another; else a line per
          rank, for the sequential mapper.
        - ``"slurm"``: a line per rank, for ``SLURM_HOSTFILE``.
        - ``"torchrun"``: a shell script that prints the options for the host that it runs on.

    Raises
    ------
    InputError
        If there are fewer hosts than ranks; or for torchrun, which numbers the ranks of a host consecutively,
        if the ranks of one host are not consecutive.
    """
    known_word(launcher, LAUNCHERS, "launcher")
    placed = _placed(placement, hosts)
    if launcher == "slurm" or (launcher == "openmpi" and _torn(placed)):
        return "".join(f"{name}\n" for name in placed)
    if launcher == "torchrun":
        return _torchrun(placed)
    line = "{}:{}\n" if launcher == "mpich" else "{} slots={}\n"
    return "".join(line.format(name, count) for name, count in _runs(placed))


@checked
def rankfile(placement: Placement, hosts: Sequence[str]) -> str:
    """Rank file for Open MPI 5.0.10 (PRRTE 3.0.13): ``mpirun --map-by rankfile:FILE=...``. It binds no rank.

    The file names no slots: Open MPI takes these for core numbers, and would bind each rank to one core.
    Without them Open MPI binds no rank, whatever ``--bind-to`` says, and earlier versions reject the file.
    A host file (`hostfile`) gives the same order with the usual binding.
    """
    return "".join(f"rank {rank}={host}\n" for rank, host in enumerate(_placed(placement, hosts)))


@checked
def command(placement: Placement, hosts: Sequence[str], launcher: str, path: str) -> str:
    """Command line, up to the program to run, that starts ranks from a file with the text of `hostfile`."""
    known_word(launcher, LAUNCHERS, "launcher")
    placed, file = _placed(placement, hosts), shlex.quote(path)
    count = len(placed)
    if launcher == "slurm":
        return f"SLURM_HOSTFILE={file} srun -n {count} --distribution=arbitrary"
    if launcher == "torchrun":
        return f"torchrun $(sh {file})"
    if launcher == "mpich":
        return f"mpiexec -f {file} -n {count}"
    return f"mpirun -n {count} --hostfile {file}{_SEQUENTIALLY if _torn(placed) else ''}"


@checked
def caveats(placement: Placement, hosts: Sequence[str], launcher: str) -> list[str]:
    """Side effects that starting ranks from a launcher's file has, one sentence each."""
    placed = _placed(placement, hosts)
    if launcher == "openmpi" and _torn(placed):
        return [
            "ranks of a host do not follow one another, so the host file needs --map-by seq, which alone "
            "binds ranks to NUMA domains; the --bind-to beside it is Open MPI 5's default for other host "
            "files: give --bind-to none for ranks that are not bound, or outnumber the cores of a host"
        ]
    if launcher != "mpich" or not _torn(placed):
        return []
    ranks_of = slots_by_host(placed)
    whole = ", ".join(f"{name}:{len(ranks)}" for name, ranks in ranks_of.items())
    numbers = {name: str(number) for number, name in enumerate(ranks_of)}
    ranks = ",".join(numbers[name] for name in placed)
    return [
        "ranks of a host do not follow one another, and Hydra counts local ranks from 0 in each line: with "
        f"MPICH 5, give hosts {whole} and -rankmap {ranks} instead if local ranks choose GPUs"
    ]


def _torchrun(placed: Sequence[str]) -> str:
    if _torn(placed):
        said = "found non-consecutive ranks of a host, but torchrun numbers them consecutively"
        raise InputError(f"{said}; give a matrix with one row per host", where="launcher")
    runs = _runs(placed)
    short = [name.partition(".")[0] for name, _ in runs]
    alike = Counter(short)
    shorter = {host[: dot.start()] for host, _ in runs for dot in re.finditer(r"\.", host)}
    lines = []
    for number, (name, count) in enumerate(runs):
        # `name.DOMAIN` is this host, too, unless another host has such a name.
        words = [name, *[f"{name}.*"] * (name not in shorter)]
        # `hostname` may print a host's name without the domain that the name has in `placed`.
        if short[number] != name and alike[short[number]] == 1 and not short[number].isdigit():
            words.append(short[number])
        given = f"--nnodes={len(runs)} --node-rank={number} --nproc-per-node={count} --rdzv-backend=static"
        meet = f"--master-addr={runs[0][0]} --master-port={_PORT}"
        lines.append(f"{'|'.join(words)}) echo {given} {meet} ;;")
    are_addresses = any(_ADDRESS.fullmatch(name) for name, _ in runs)
    return _TORCHRUN.format(cases="\n".join(lines), own=_OWN_ADDRESSES if are_addresses else _OWN_NAME)


def _runs(placed: Sequence[str]) -> list[tuple[str, int]]:
    """(host, number of ranks) of each run of consecutive ranks on one host."""
    return [(name, len(list(ranks))) for name, ranks in groupby(placed)]


def _torn(placed: Sequence[str]) -> bool:
    """True if the ranks of some host are not consecutive."""
    return len(_runs(placed)) > len(set(placed))


def _placed(placement: Placement, hosts: Sequence[str]) -> list[str]:
    """The host of every rank."""
    count = len(placement.order)
    if len(hosts) < count:
        said = f"found {format_count(len(hosts), 'slot')} for {count} ranks; name a slot for each"
        raise InputError(said, where="hosts")
    for name in hosts:
        if not _HOST.fullmatch(name) or ":" in name:
            said = "expected names of hosts that launchers read, such as node-1; give a file with such names"
            raise InputError(f"found {shown(repr(name), 60)}; {said}", where="hosts")
    return [hosts[slot] for slot in placement.order]
