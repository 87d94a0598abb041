"""Apply a sketch to a topology and a collective: build a problem whose clauses refer to links and ranks.

A local rank in a sketch stands for this rank of every node. Connections apply to every ordered pair of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations, product
from typing import TYPE_CHECKING, Any, Unpack

from taccl._internal.arguments import checked
from taccl._internal.names import matching
from taccl._internal.units import exact
from taccl.errors import SketchError
from taccl.problem.clauses import CLAUSES
from taccl.problem.collectives import CollectiveArguments, argument_names, make, together
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem, SwitchPolicy
from taccl.sketch.reachability import check_reachable
from taccl.sketch.symmetry import check_clauses, check_topology, narrow, offset_permutation
from taccl.topology.parts import check_ranks, links_among
from taccl.topology.recognise import dimensions

if TYPE_CHECKING:
    from taccl._internal.arguments import Count, Size
    from taccl.problem.collective import Collective
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology


@checked
def apply(
    sketch: Sketch,
    topology: Topology,
    collective: Collective | str,
    *,
    chunk_size: Size | Sequence[Size] | None = None,
    size: Size | None = None,
    chunks_per_rank: Count | None = None,
    group: str | None = None,
    reachable: bool = True,
    **arguments: Unpack[CollectiveArguments],
) -> Problem:
    """Build the problem that this sketch defines for a topology and a collective.

    Parameters
    ----------
    topology : Topology
        Topology that the sketch was written for, or that it fits.
    collective : Collective or str
        Name, or a `Collective`. If its number of chunks is open and `chunks_per_rank` is not given, the
        sketch's `per_rank` applies. Without that the number stays open, and `taccl.synthesize` chooses it.
    chunk_size, size : int, str or sequence, optional
        Bytes of each chunk, or of the whole collective as nccl-tests counts it. Default: the sketch's own
        chunk size, with `per_rank` chunks per rank (one if open).
    chunks_per_rank : int, optional
        Chunks of each rank's own data; overrides `per_rank` of the sketch.
    group : str, optional
        Name of process groups in the sketch. The named collective then runs in each of these groups, all at
        the same time.
    reachable : bool
        False to return the problem even if no schedule solves it, for `taccl.explain`.
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as `taccl.collectives.make` takes them.

    Raises
    ------
    SketchError
        If the sketch does not fit the topology, names ranks or links that do not exist, has a symmetry that
        the topology lacks, or forbids all paths of a chunk to a destination.
    CollectiveError
        If the sizes do not fit the collective.
    """
    if chunk_size is not None and size is not None:
        raise SketchError("found both a chunk size and a size; give one", where="chunk_size, size")
    _check_machine(sketch, topology)
    if group is not None:
        if not isinstance(collective, str):
            raise SketchError(
                "found a collective of given ranks; expected a name, for each group", where="group"
            )
        many = {"chunks_per_rank": chunks_per_rank, **arguments}
        collective = in_groups(topology, collective, sketch.along(group), where=sketch.where("group"), **many)
        arguments, chunks_per_rank = {}, None
    if isinstance(collective, str):
        collective = make(collective, topology.num_ranks, chunks_per_rank=chunks_per_rank, **arguments)
        arguments, chunks_per_rank = {}, None
    own = sketch.chunks.per_rank if "per_rank" in sketch.chunks.model_fields_set else None
    notes = []
    if collective.chunks_open:
        chunks_per_rank = chunks_per_rank or own
    elif own not in (None, collective.chunks_per_rank):
        notes.append(
            f"{sketch.where('chunks.per_rank')}: the sketch asks for {own}; the collective was given with "
            f"{collective.chunks_per_rank}, which holds"
        )
    if chunk_size is None and size is None:
        chunk_bytes = _own_chunk_bytes(sketch)
        if collective.chunks_open and chunks_per_rank is None:
            size = chunk_bytes * collective.size_chunks
        else:
            chunk_size = chunk_bytes
    clauses = _resolve(sketch, topology)
    sizes: Any = {"chunk_bytes": chunk_size, "size_bytes": size}
    problem = make_problem(
        topology, collective, **sizes, chunks_per_rank=chunks_per_rank,
        clauses=None if _is_silent(sketch, clauses) else clauses, notes=notes, **arguments,
    )  # fmt: skip
    problem = _with_symmetry(problem, sketch)
    if reachable:
        check_reachable(problem)
    return problem


def in_groups(
    topology: Topology, name: str, along: Sequence[int], *, where: str, **arguments: Any
) -> Collective:
    """Combine instances of a collective, one for each group of ranks that differ only in some dimensions.

    - `name`: Name of the collective.
    - `along`: Dimensions in which the ranks of a group differ, numbered from 1.
    - `where`: Origin of `along`, such as ``"file: field"``, for error messages.
    - `arguments`: Arguments of `taccl.collectives.make`.
    """
    found = dimensions(topology)
    if len(set(along)) < len(along) or max(along) > len(found.dims):
        said = f"found {','.join(map(str, along))}; expected different dimensions of 1 to {len(found.dims)}"
        raise SketchError(said, where=where)
    groups = found.groups([k - 1 for k in along])
    each = make(name, len(groups[0]), **arguments)
    return together([each.among(ranks, num_ranks=topology.num_ranks) for ranks in groups])


def _is_silent(sketch: Sketch, clauses: Clauses) -> bool:
    """True if an unnamed sketch has no clause and no merging table, so that the default clauses apply."""
    return not sketch.name and "merging" not in sketch.model_fields_set and clauses == clauses.only("merge")


def _own_chunk_bytes(sketch: Sketch) -> int:
    """Chunk size in bytes from the sketch. Raises `SketchError` if it has none."""
    if sketch.chunk_bytes is None:
        raise SketchError(
            "found no size; expected bytes such as '1MB'; give size= or chunk_size=, or write it here",
            where=sketch.where("chunks.size"),
        )
    return sketch.chunk_bytes


def _check_machine(sketch: Sketch, topology: Topology) -> None:
    """Raise `SketchError` if the sketch was written for another machine or number of nodes."""
    if sketch.machine and topology.machine and matching(sketch.machine, [topology.machine]) is None:
        raise SketchError(
            f"found {sketch.machine!r}, but the topology {topology.name} is a {topology.machine!r}; choose "
            "one of the two",
            where=sketch.where("machine"),
        )
    if sketch.nodes is not None and sketch.nodes != topology.num_nodes:
        raise SketchError(
            f"found {sketch.nodes}, but the topology {topology.name} has {topology.num_nodes}; make them "
            f"equal, or rescale the sketch to {topology.num_nodes} nodes (with_nodes, --nodes)",
            where=sketch.where("nodes"),
        )


def _resolve(sketch: Sketch, topology: Topology) -> Clauses:
    """Convert a sketch's clauses to links and ranks, except the symmetry, which depends on the collective."""
    resolver = _Resolver(sketch, topology)
    kept = resolver.links_allowed()
    internode = [e for e in topology.internode_links if e in kept]
    carries_from, carries_to = resolver.relays(internode)
    merging = {"internode": internode, "all": sorted(kept), "none": []}[sketch.merging.links]
    crossing = sketch.internode
    copied: dict[str, Any] = {}
    for name, clause in CLAUSES.items():
        if clause.is_copied:
            value = sketch.value_of(clause.said[0])
            copied[name] = exact(value) if clause.shape == "fraction" else value
    return Clauses(
        name=sketch.name,
        links_allowed=None if len(kept) == len(topology.links) else frozenset(kept),
        carries_from=carries_from,
        carries_to=carries_to,
        direct_crossing=crossing is not None and crossing.crossing == "direct",
        own_first=frozenset(internode if crossing and crossing.own_before_relayed else ()),
        max_merge=sketch.merging.max if merging else 1,
        merging=frozenset(merging),
        switch_policies=resolver.switch_policies(kept),
        where=_where(sketch),
        **copied,
    )


@dataclass(frozen=True)
class _Resolver:
    """Converter of a sketch's clauses, which name local ranks, to links and ranks of one topology."""

    sketch: Sketch
    topology: Topology

    def links_allowed(self) -> set[int]:
        """Indices of the links that the sketch allows."""
        connections = self.sketch.internode and self.sketch.internode.connections
        across = self._pairs("internode.connections", connections, across=True)
        inside = self._pairs("intranode.links", self.sketch.intranode.links, across=False)
        kept = set()
        for index, link in enumerate(self.topology.links):
            pairs = across if self.topology.is_internode(index) else inside
            if pairs is None or pairs.issuperset(product(link.srcs, link.dsts)):
                kept.add(index)
        return kept - self._spare_planes()

    def relays(self, internode: Iterable[int]) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
        """Restrict links between nodes to the chunks that the sketch's relays allow; see `carried`."""
        relays = self.sketch.internode.relays if self.sketch.internode else None
        if not relays:
            return {}, {}
        for sender, ranks in relays.items():
            self._check_local([sender, *ranks], "internode.relays")
        return carried(self.topology, relays, internode)

    def switch_policies(self, kept: set[int]) -> tuple[SwitchPolicy, ...]:
        """Policies of the sketch's switches, one for each switch and node."""
        policies = []
        for index, switch in enumerate(self.sketch.switch):
            field = f"switch[{index}]"
            self._check_local(switch.ranks, f"{field}.ranks")
            for node in range(self.topology.num_nodes):
                ranks = {self.topology.ranks_of_node[node][local] for local in switch.ranks}
                links = tuple(e for e in links_among(self.topology.links, ranks) if e in kept)
                if not links:
                    raise SketchError(
                        f"no link that may be used joins two of ranks {sorted(ranks)}; expected a switch's "
                        "ranks; correct them, or remove the switch",
                        where=self.sketch.where(f"{field}.ranks"),
                    )
                if switch.policy != "free":
                    name = switch.name or f"switch {index}"
                    policies.append(SwitchPolicy(f"{name} of node {node}", switch.policy, links))
        return tuple(policies)

    def _pairs(self, field: str, said: Any, *, across: bool) -> set[tuple[int, int]] | None:
        """(source, destination) pairs of ranks that the sketch allows across or inside nodes; None if all."""
        if said in (None, "all"):
            return None
        topology, named = self.topology, said
        if isinstance(said, Mapping):
            named = [(src, dst) for src, receivers in said.items() for dst in receivers]
        self._check_local(chain.from_iterable([] if isinstance(named, str) else named), field)
        joined = {pair for link in topology.links for pair in product(link.srcs, link.dsts)}
        nodes, pairs = topology.ranks_of_node, set()
        for senders, receivers in permutations(nodes, 2) if across else zip(nodes, nodes, strict=True):
            if said == "fully-connected":
                named = product(range(len(senders)), range(len(receivers)))
            elif said == "direct-map":
                named = [(r, r) for r in range(min(len(senders), len(receivers)))]
            for src, dst in named:
                pair = senders[src], receivers[dst]
                if pair not in joined:
                    raise SketchError(
                        f"found {src} -> {dst}, but {topology.name} has no link from rank {pair[0]} to rank "
                        f"{pair[1]}; remove the connection, or add the link",
                        where=self.sketch.where(field),
                    )
                pairs.add(pair)
        return pairs

    def _spare_planes(self) -> set[int]:
        """Parallel links beyond the number of planes that the sketch allows for a switch."""
        spare: set[int] = set()
        for index, switch in enumerate(self.sketch.switch):
            if switch.planes is None:
                continue
            self._check_local(switch.ranks, f"switch[{index}].ranks")
            parallel = defaultdict(list)
            for ranks in self.topology.ranks_of_node:
                for e in links_among(self.topology.links, (ranks[local] for local in switch.ranks)):
                    parallel[self.topology.links[e].srcs, self.topology.links[e].dsts].append(e)
            spare.update(e for links in parallel.values() for e in links[switch.planes :])
        return spare

    def _check_local(self, ranks: Iterable[int], field: str) -> None:
        """Raise `SketchError` for a local rank that some node lacks."""
        fewest = min(len(each) for each in self.topology.ranks_of_node)
        name = self.topology.machine or self.topology.name
        where, of = self.sketch.where(field), f"{name} has local ranks"
        check_ranks(ranks, fewest, where=where, error=SketchError, of=of)


def carried(
    topology: Topology, relays: Mapping[int, Collection[int]], links: Iterable[int]
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """Restrict links between nodes to chunks of some ranks: ({link: start ranks}, {link: end ranks}).

    Such a link carries only chunks that start at its start ranks; in the reduce phase, only chunks whose root
    is one of its end ranks.

    - `relays`: {local rank of a sender: local ranks whose chunks it carries}. Links of other senders are not
      restricted, and have no entry in the result.
    """
    node, local, ranks_of_node = topology.node_of_rank, topology.local_rank, topology.ranks_of_node

    def of_nodes(ends: Sequence[int], local_ranks: Collection[int]) -> frozenset[int]:
        return frozenset(
            ranks_of_node[n][each] for n in {node[rank] for rank in ends} for each in local_ranks
        )

    carries_from, carries_to = {}, {}
    for index in links:
        link = topology.links[index]
        senders = [local[src] for src in link.srcs]
        if all(sender in relays for sender in senders):
            admitted = set().union(*(relays[sender] for sender in senders))
            carries_from[index] = of_nodes(link.srcs, admitted)
            carries_to[index] = of_nodes(link.dsts, admitted)
    return carries_from, carries_to


def _where(sketch: Sketch) -> dict[str, str]:
    """{field: "file: field"} of every clause, for messages; empty if the sketch is not from a file."""
    fields = []
    for table in ("internode", "intranode", "objective", "routing", "merging"):
        content = getattr(sketch, table)
        fields += [f"{table}.{field}" for field in sorted(content.model_fields_set)] if content else []
    for table in ("switch", "symmetry"):
        fields += [f"{table}[{i}]" for i in range(len(getattr(sketch, table)))]
    return {field: sketch.where(field) for field in fields if sketch.source}


def _with_symmetry(problem: Problem, sketch: Sketch) -> Problem:
    """Problem with the symmetries of the sketch that its topology, clauses and collective have."""
    topology, collective = problem.topology, problem.collective
    generators, notes = [], list(problem.notes)
    for index, entry in enumerate(sketch.symmetry):
        where = sketch.where(f"symmetry[{index}]")
        label = f"offset {entry.offset} in groups of {entry.group}"
        try:
            ranks = offset_permutation(topology.num_ranks, entry.offset, entry.group)
        except SketchError as error:
            raise SketchError(error.message, where=where) from None
        links = check_topology(topology, ranks, label=label, where=where)
        check_clauses(topology, problem.clauses, ranks, links, label=label, where=where)
        exponent, fitting = narrow(problem, ranks)
        if exponent > 1:
            reason = f"{collective.name} has {_why_narrow(problem)}"
            if entry.strict:
                raise SketchError(
                    f"{label} does not fit the collective: {reason}; correct it, or set strict = false",
                    where=where,
                )
            offset = entry.offset * exponent % entry.group
            kept = f"narrowed to offset {offset}" if fitting else "dropped"
            notes.append(f"symmetry offset {entry.offset} in groups of {entry.group} {kept}: {reason}")
        if fitting is not None:
            generators.append(fitting)
    return replace(problem.with_clauses(symmetry=tuple(generators)), notes=tuple(notes))


def _why_narrow(problem: Problem) -> str:
    """Reason that a collective lacks a symmetry of the ranks, for messages."""
    taken = argument_names(problem.collective.name)
    if "root" in taken:
        return "a root"
    if taken:
        return f"{taken[0]} that do not map to each other"
    sizes = "are of different sizes" if len(set(problem.chunk_bytes)) > 1 else "do not map to each other"
    return f"chunks that {sizes}"
