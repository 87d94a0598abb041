"""Symbolic execution and checks of MSCCL++ execution plans, by the rules of the MSCCL++ executor.

This module shares no code with the conversion of programs to plans: it derives the outcome from the JSON
alone. All threads of a threadblock copy and reduce together; they synchronise at ``nop`` and at ``barrier``,
which also joins several threadblocks of a rank. For signals, waits, semaphores and requests to a NIC, thread
i handles the i-th id of the operation. Two threads are simulated: the first one, and one that stands for all
others. A NIC processes the requests of its channel in order. Their completion is unknown until a ``flush``,
or a signal sent over the same channel. The user of a rank accesses its buffers before the rank begins, and
again when its threadblocks have ended. One run finds all unordered accesses, as for programs
(`taccl.program.execution`).

A relaxed signal orders no writes, but reads of other ranks' memory before it have ended. Operations that
`taccl.formats.mscclpp.operations` does not list, and limits that a plan exceeds, raise an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from taccl._internal.units import format_count
from taccl.errors import FormatError, TacclError, VerificationError
from taccl.formats.mscclpp.operations import FIRST_PACKET, FLOWS, SHARED, check_gpu, flat_operations
from taccl.formats.mscclpp.plan_state import Op, Place, PlanState, Reads
from taccl.formats.mscclpp.slices import finer_plans
from taccl.program.contents import Content, contents_of
from taccl.program.execution import unordered

#: Arrival of a threadblock at a barrier: (its last event, reads of other ranks that have ended).
Arrival = tuple[int, Reads]
_ROOTED = ("broadcast", "reduce")


def run_plan(plan: Mapping[str, Any], *, root: int = 0, races: bool = True) -> bool:
    """Run a plan once, tracking the content of every chunk; return True if the outputs were checked.

    Outputs are checked for ``allgather``, ``allreduce``, ``reducescatter``, ``alltoall``, ``broadcast`` and
    ``reduce``.

    - `races`: True to search for unordered accesses, which takes most of the time.

    Raises `VerificationError` for the first fault. `FormatError` if the plan is malformed, exceeds a limit of
    the executor, or has an operation that is not supported here.
    """
    if not plan.get("gpus"):
        said = "found no gpus; expected one for each rank: convert the schedule or program again"
        raise FormatError(said, where="plan")
    run: _PlanRun | None = None
    units, is_checked = 1, True
    try:
        if any("inputChunks" in gpu for gpu in plan["gpus"]):
            said = "found a plan of an earlier MSCCL++, with 'inputChunks' for 'input_chunks'"
            raise FormatError(f"{said}; write it again with a current MSCCL++", where="plan")
        for r, gpu in enumerate(plan["gpus"]):
            check_gpu(gpu, r)
        for units, finer in finer_plans(plan):
            run = _PlanRun(finer, root)
            run.run()
            if races:
                for _, earlier, later in unordered(run.events):
                    raise VerificationError(f"race: nothing orders {later.by} and {earlier.by}")
            is_checked = run.check_end()
        return is_checked
    except VerificationError as error:
        if units == 1:
            raise
        raise VerificationError(f"{error} (with {units} units per chunk)") from None
    except TacclError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        found = f"no field {error}" if isinstance(error, KeyError) else "a value of a wrong type or length"
        where = f" in {run.label}" if run is not None else ""
        said = f"found {found}{where}; expected an MSCCL++ execution plan"
        raise FormatError(said, where="plan") from None


class _PlanRun(PlanState):
    """Symbolic run of a plan's operations."""

    def __init__(self, plan: Mapping[str, Any], root: int) -> None:
        super().__init__(plan, root)
        self.actions = {
            "nop": self._nop, "barrier": self._pass_barrier,
            **dict.fromkeys(("put", "pws", "pwsf"), self._put),
            "ppkt": self._put_packets, "get": self._get, "signal": self._signal,
            "wait": self._wait, "flush": self._flush, "sem_acquire": self._wait,
            "sem_release": self._release, "rlxsignal": self._signal, "rlxwait": self._wait,
            **dict.fromkeys(FLOWS, self._combine),
        }  # fmt: skip
        #: {(rank, barrier): (threadblocks that it is for, arrivals since it was last passed)}.
        self.barriers: dict[tuple[int, int], tuple[int, list[Arrival]]] = {}
        #: {(rank, threadblock): arrivals at the barrier at which it is}.
        self.at_barrier: dict[tuple[int, int], list[Arrival]] = {}

    def run(self) -> None:
        """Run all threadblocks to their ends; raise `VerificationError` if they deadlock."""
        position = dict.fromkeys(self.blocks, 0)
        awaited: dict[tuple[int, int], tuple[Any, ...]] = {}  # {threadblock: signal or packet}
        running, before = [*self.blocks], -1
        while before < (before := sum(position.values())):
            for r, t in running:
                if (r, t) in awaited and not self._has_come(awaited[r, t]):
                    continue
                ops = self.blocks[r, t]["ops"]
                for s in range(position[r, t], len(ops)):
                    op = ops[s]
                    self.label = f"operation {op.get('at', s)} ({op['name']}) of threadblock {t} of gpu {r}"
                    if op["name"] == "barrier" and (r, t) not in self.at_barrier:
                        self._arrive(r, t, op)
                    absent = next((it for it in self._awaited(r, t, op) if not self._has_come(it)), None)
                    if absent is not None:
                        awaited[r, t] = absent
                        break
                    self.actions[op["name"]](r, t, op)
                    position[r, t] += 1
            running = [block for block in running if position[block] < len(self.blocks[block]["ops"])]
        stuck = [block for block, each in self.blocks.items() if position[block] < len(each["ops"])]
        for block in stuck:
            op = self.blocks[block]["ops"][position[block]]
            raise VerificationError(
                f"deadlock: {format_count(len(stuck), 'threadblock')} cannot go on; the first is threadblock "
                f"{block[1]} of gpu {block[0]}, at operation {op.get('at', position[block])} ({op['name']})"
            )
        for r in range(len(self.gpus)):
            self.label = f"the caller of gpu {r}, which continues"
            ended = [self.last[r, t, i] for t in range(len(self.gpus[r]["threadblocks"])) for i in (0, 1)]
            self._act(("user", r), *ended, writes=self.users[r])

    def check_end(self) -> bool:
        """True if outputs were checked; raises `VerificationError` for wrong outputs or leftover signals."""
        for inbox, signals in self.inboxes.items():
            kind, r, number = inbox[:3]
            at, left = f"a {kind} channel from gpu {number}", 0
            if kind == "semaphore":
                at, left = f"semaphore {number}", self.gpus[r]["semaphores"][number]["init_value"]
            if len(signals) != left:
                said = f"{format_count(len(signals) - left, 'signal')} too many at gpu {r} in {at}"
                raise VerificationError(said)
        if self.collective is None:
            return False
        expected = contents_of(self.collective)
        for r, where in enumerate(self.layouts):
            found = [self._content(self._place(r, r, "o", i)) for i in range(len(where.outputs))]
            wrong = [i for i, chunk in enumerate(where.outputs) if found[i] != expected[chunk]]
            if wrong:
                said = (
                    f"output: {format_count(len(wrong), 'chunk')} of gpu {r} wrong, the first is {wrong[0]}"
                )
                raise VerificationError(said)
        return True

    def _awaited(self, r: int, t: int, op: Op) -> Sequence[tuple[Any, ...]]:
        """Inboxes and packets for which an operation waits; a packet is (rank, number of the packet)."""
        if op["name"] in ("wait", "rlxwait", "sem_acquire"):
            return self._inboxes(r, t, op)
        if op["name"] == "barrier":
            return [("barrier", r, t, op["num_threadblocks"])]
        arriving = op["src_buff"][FIRST_PACKET[op["name"]] :] if op["name"] in FIRST_PACKET else ()
        return [(r, packet) for each in arriving for packet in _packets(each)]

    def _has_come(self, awaited: tuple[Any, ...]) -> bool:
        """True if an inbox has a signal, a packet has arrived, or a barrier has all of its threadblocks."""
        if awaited[0] == "barrier":
            return bool(len(self.at_barrier[awaited[1], awaited[2]]) == awaited[3])
        return bool(self.inboxes.get(awaited)) or awaited in self.packets

    def _nop(self, r: int, t: int, _op: Op) -> None:
        self._act((r, t, 0), self.last[r, t, 1])
        self.last[r, t, 1] = self.last[r, t, 0]
        self.ended[r, t, 0] |= self.ended[r, t, 1]
        self.ended[r, t, 1] |= self.ended[r, t, 0]

    def _arrive(self, r: int, t: int, op: Op) -> None:
        """Note that a threadblock is at a barrier, which must be for as many as the others there state."""
        self._nop(r, t, op)
        key, size = (r, op["barrier_id"]), op["num_threadblocks"]
        of, arrivals = self.barriers.setdefault(key, (size, []))
        if of != size:
            raise self._fault(f"barrier {key[1]} is for {size} threadblocks here, and for {of} elsewhere")
        arrivals.append((self.last[r, t, 0], frozenset(self.ended[r, t, 0])))
        self.at_barrier[r, t] = arrivals
        if len(arrivals) == size:
            del self.barriers[key]

    def _pass_barrier(self, r: int, t: int, op: Op) -> None:
        arrivals = self.at_barrier.pop((r, t))
        self._act((r, t, 0), *(event for event, _ in arrivals))
        self.ended[r, t, 0] |= frozenset[tuple[int, Place]]().union(*(ended for _, ended in arrivals))
        self._nop(r, t, op)

    def _signal(self, r: int, t: int, op: Op) -> None:
        for i, (kind, _, peer, number) in enumerate(self._inboxes(r, t, op)):
            thread: Any = (r, t, min(i, 1))
            if kind == "port":
                thread, asked = (kind, r, peer, number), self.last[thread]
                self._act(thread, asked)
            if (kind, peer, r, number) not in self.inboxes:
                raise self._fault(f"gpu {peer} has no end of the channel")
            if op["name"] == "rlxsignal" and kind == "memory":
                # No fence: it orders what the user did before the rank began, and reads that have ended.
                ended, thread = frozenset(self.ended[thread]), ("relaxed", r)
                self.last[thread] = self.begun[r]
                self._act(thread, received=ended)
            self.inboxes[kind, peer, r, number].append(self.last[thread])

    def _wait(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            self._act((r, t, min(i, 1)), self.inboxes[inbox].popleft())

    def _release(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            self.inboxes[inbox].append(self.last[r, t, min(i, 1)])

    def _flush(self, r: int, t: int, op: Op) -> None:
        # The executor flushes as many channels as the operation lists destinations.
        for i in range(min(len(op["channel_ids"]), len(op.get("dst_buff", ())))):
            self._act((r, t, min(i, 1)), self.last[self._channel(r, t, op, i)])

    def _put(self, r: int, t: int, op: Op) -> None:
        for i, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
            kind = op["channel_type"]  # memory: all sources are taken from the first one's buffer
            reads = self._own(r, src | {"type": (src if kind == "port" else op["src_buff"][0])["type"]})
            targets = self._at_peer(r, t, kind, dst, src["type"] if kind == "port" else "")
            self._write(r, t, [self._content(place) for place in reads], reads, targets, op, i)
        if op["name"] == "put" or op["channel_type"] != "port":  # memory channels signal nothing here
            return
        if len(op["channel_ids"]) != len(op["dst_buff"]):
            raise self._fault(f"{len(op['channel_ids'])} channels for {len(op['dst_buff'])} destinations")
        self.label = f"the signal of {self.label}"  # events with one label are one access
        self._signal(r, t, op)
        if op["name"] == "pwsf":
            self._flush(r, t, op)

    def _get(self, r: int, t: int, op: Op) -> None:
        """Copy from another rank; the executor of MSCCL++ 0.9 takes each of the two indices for the other."""
        for src, dst in zip(op["src_buff"], op["dst_buff"], strict=True):
            reads = self._at_peer(r, t, "memory", src | {"index": dst["index"]})
            targets = self._own(r, dst | {"index": src["index"], "size": src["size"]})
            self._write(r, t, [self._content(place) for place in reads], reads, targets, op)

    def _write(
        self,
        r: int,
        t: int,
        values: list[Content],
        reads: list[Place],
        targets: list[Place],
        op: Op,
        i: int = 0,
        received: Reads = frozenset(),
    ) -> None:
        """Write values to the targets: over a port channel, the NIC writes; otherwise all threads write."""
        if len(values) != len(targets):
            raise self._fault(f"{len(values)} chunks go to {len(targets)}")
        if op.get("channel_type") == "port":
            self._act(self._channel(r, t, op, i), self.last[r, t, min(i, 1)], reads=reads, writes=targets)
        else:
            for thread in (0, 1):
                self._act((r, t, thread), reads=reads, writes=targets, received=received)
                self.ended[r, t, thread].update((self.last[r, t, thread], p) for p in reads if p[0] != r)
        self.contents |= zip(targets, values, strict=True)

    def _put_packets(self, r: int, t: int, op: Op) -> None:
        if op["channel_type"] == "port":
            self._put_by_nic(r, t, op)
            return
        for src, dst in zip(op["src_buff"], op["dst_buff"], strict=True):
            reads = self._own(r, src | {"type": op["src_buff"][0]["type"]})
            values, fed = [self._content(place) for place in reads], list(map(self._read, reads))
            halves = self._send_packets(r, values, fed, self._remote(r, t, "memory", dst), dst)
            self._write(r, t, [value for value in values for _ in (0, 1)], reads, halves, op)

    def _put_by_nic(self, r: int, t: int, op: Op) -> None:
        """Put packets from the rank's scratch; the NIC does not wait until they are there."""
        for i, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
            if src["type"] != "s":
                raise self._fault(f"packets come from {src['type']}; expected s, scratch")
            known = [(r, number) for number in _packets(src)]
            absent = next((number for _, number in known if (r, number) not in self.packets), None)
            if absent is not None:
                raise self._fault(f"packet {absent} of gpu {r} may not be written before it is sent")
            if any(self.senders[packet] != r for packet in known):
                said = "found packets of another rank; read them first (rppkt)"
                raise FormatError(f"{said}, as others cannot be checked here", where=self.label)
            reads = self._packet_places(r, r, src)
            read = [frozenset({(len(self.events), place)}) for place in reads[::2]]
            fed = [self.fed[packet] | each for packet, each in zip(known, read, strict=True)]
            values = [self.packets[packet] for packet in known]
            places = self._send_packets(r, values, fed, self._remote(r, t, "port", dst), dst)
            self._write(r, t, [value for value in values for _ in (0, 1)], reads, places, op, i)

    def _packet_places(self, rank: int, owner: int, packets: Op) -> list[Place]:
        """Places of packets in scratch, two for each: packet p occupies those of chunks 2p and 2p + 1."""
        return self._places(rank, owner, "s", {"index": 2 * packets["index"], "size": 2 * packets["size"]})

    def _read(self, place: Place) -> Reads:
        """Reads of a place by both threads of the next operation: {(number of the event, place)}."""
        return frozenset((len(self.events) + thread, place) for thread in (0, 1))

    def _send_packets(
        self, r: int, values: list[Content], fed: list[Reads], target: tuple[int, str], dst: Op
    ) -> list[Place]:
        """Send values as packets into a rank's scratch; return the two places of each packet in turn."""
        owner, buffer = target
        if buffer != "s":
            raise self._fault(f"packets go to {buffer}; expected s, scratch")
        if owner != r and not self.halves:
            raise FormatError(SHARED, where=self.label)
        for number, value, reads in zip(_packets(dst), values, fed, strict=True):
            if (owner, number) in self.packets:
                raise self._fault(f"packet {number} of gpu {owner} is written twice")
            self.packets[owner, number], self.fed[owner, number] = value, reads
            self.senders[owner, number] = r
        return self._packet_places(r, owner, dst)

    def _combine(self, r: int, t: int, op: Op) -> None:
        """Write the sum of an operation's sources to its destinations.

        The arrival of a packet does not imply that earlier writes of its sender have arrived, so no order of
        events is recorded for it. Reads on which its value depends have ended.
        """
        flow, reads = FLOWS[op["name"]], list[Place]()
        columns, fed = list[list[Content]](), list[list[Reads]]()  # of each source
        for kind, each in self._kinds(op["src_buff"], (flow.source, flow.further_sources)):
            if kind == "packets":
                columns.append([self.packets[r, packet] for packet in _packets(each)])
                fed.append([self.fed[r, packet] for packet in _packets(each)])
            else:
                places = self._own(r, each) if kind == "own" else self._at_peer(r, t, "memory", each)
                reads += places
                columns.append([self._content(place) for place in places])
                fed.append(list(map(self._read, places)))
        sums = [reduce(add, each) for each in zip(*columns, strict=True)]
        reads_of = [frozenset[tuple[int, Place]]().union(*each) for each in zip(*fed, strict=True)]
        values, targets = list[Content](), list[Place]()
        number_of: dict[Place, int] = {}  # {place of a destination: number of its chunk in the sum}
        if op.get("channel_type") == "port":  # all threads have read the packets; then the NIC sends them
            self._nop(r, t, op)
            for i, dst in enumerate(op["dst_buff"]):
                places = self._send_packets(r, sums, reads_of, self._remote(r, t, "port", dst), dst)
                self._write(r, t, [value for value in sums for _ in (0, 1)], [], places, op, i)
            return
        for kind, dst in self._kinds(op["dst_buff"], flow[2:]):
            if kind.endswith("packets"):
                owner = (r, dst["type"]) if kind == "packets" else self._remote(r, t, "memory", dst)
                targets += self._send_packets(r, sums, reads_of, owner, dst)
                values += [value for value in sums for _ in (0, 1)]
            else:
                places = self._own(r, dst) if kind == "own" else self._at_peer(r, t, "memory", dst)
                number_of |= {place: number for number, place in enumerate(places)}
                targets += places
                values += sums
        # A thread writes a chunk of the sum once it has read the packets of that chunk alone.
        own = {len(self.events), len(self.events) + 1}
        received = frozenset(
            (event, place)
            for number, each in enumerate(reads_of)
            for event, place in each
            if event not in own and number_of.get(place, number) == number
        )
        self._write(r, t, values, reads, targets, {}, received=received)

    def _kinds(self, buffers: list[Op], kinds: Sequence[str]) -> Iterator[tuple[str, Op]]:
        """Yield the kind of each source or destination; the last of `kinds` is that of all further ones."""
        if not buffers:
            raise ValueError
        for place, each in enumerate(buffers):
            kind = kinds[min(place, len(kinds) - 1)]
            if not kind:
                raise self._fault(f"{len(buffers)} sources or destinations; expected {place}")
            yield kind, each


def _packets(chunks: Op) -> range:
    return range(chunks["index"], chunks["index"] + chunks["size"])


def verify_plan(plan: Mapping[str, Any]) -> bool:
    """Run a plan with its root; if the plan states none, try each rank as root until one passes.

    Returns and raises as `run_plan`; if every root fails, the fault with root 0.
    """
    if isinstance(plan.get("root"), int):
        return run_plan(plan, root=plan["root"])
    try:
        return run_plan(plan)
    except VerificationError:
        for root in range(1, len(plan["gpus"]) if plan["collective"] in _ROOTED else 0):
            with suppress(VerificationError):
                return run_plan(plan, root=root)
        raise


def needs_flush(plan: Mapping[str, Any]) -> bool:
    """True if a correct plan has a fault without the flush of ``pwsf``, which MSCCL++ up to 0.9.0 omits."""
    plain = json.loads(json.dumps(plan))
    blocks = [block for gpu in plain["gpus"] for block in gpu["threadblocks"]]
    flushing = [op for block in blocks for op in flat_operations(block["ops"]) if op["name"] == "pwsf"]
    for op in flushing:
        op["name"] = "pws"
    try:
        if flushing:
            verify_plan(plain)
    except VerificationError:
        return True
    return False
