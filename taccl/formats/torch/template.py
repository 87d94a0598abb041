"""A schedule of an allreduce between two ranks, for PyTorch.

    collective = Collective()  # or Collective(group)
    collective.all_reduce(tensor)

Every rank of the group makes the same calls in the same order. `ROUNDS` says what each rank sends, receives
and adds up, round by round. The messages of a round go as one `batch_isend_irecv`, at most one to each rank.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, count
from threading import Lock, get_ident
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist


class In(NamedTuple):
    """Chunks of the caller's input, which is only read: index of the first chunk, number of chunks."""

    first: int
    num: int


class Out(NamedTuple):
    """Chunks of the caller's output."""

    first: int
    num: int


class Staged(NamedTuple):
    """Chunks of a tensor that this module allocates."""

    number: int
    first: int
    num: int


class Local(NamedTuple):
    """The target becomes a copy of its operand, or the sum of its two operands."""

    target: In | Out | Staged
    operands: list[In | Out | Staged]


class Round(NamedTuple):
    """One rank's part in a round.

    - `stage`: Tensors to allocate, {`Staged.number`: for each chunk, its index in its block}. The index
      gives the chunk's length, as each block is cut into `PARTS` chunks that may differ in length.
    - `send`, `receive`: One message for each peer.
    - `then`: Local operations once all messages have arrived, in order.
    """

    stage: dict[int, list[int]] = {}
    send: dict[int, list[In | Out | Staged]] = {}
    receive: dict[int, Out | Staged] = {}
    then: list[Local] = []


# --- the schedule ---
NUM_RANKS = 2
#: Number of chunks that each block of data is cut into, as evenly as whole elements allow.
#: A block is one rank's part of the data (all of it in all_reduce, broadcast and reduce).
PARTS = 2
#: Root of the collective, as a rank of the group; None for a collective without a root.
ROOT: int | None = None
#: Tag of the messages of a group's first call; each later call has the next tag.
TAG = 1
#: The rounds of each rank.
ROUNDS: list[list[Round]] = [
    [
        Round(
            stage={0: [0]},
            send={1: [Out(1, 1)]},
            receive={1: Staged(0, 0, 1)},
            then=[Local(Out(0, 1), [Out(0, 1), Staged(0, 0, 1)])],
        ),
        Round(send={1: [Out(0, 1)]}, receive={1: Out(1, 1)}),
    ],
    [
        Round(
            stage={0: [1]},
            send={0: [Out(0, 1)]},
            receive={0: Staged(0, 0, 1)},
            then=[Local(Out(1, 1), [Out(1, 1), Staged(0, 0, 1)])],
        ),
        Round(send={0: [Out(1, 1)]}, receive={0: Out(0, 1)}),
    ],
]
# --- end of the schedule ---

#: Function that combines two contributions, for each reduction; AVG divides the sum at the end.
_COMBINE = {
    dist.ReduceOp.SUM: torch.add, dist.ReduceOp.AVG: torch.add, dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}  # fmt: skip
#: Number of different tags of calls.
_TAGS = 2**20


class _Order:
    """Order of a process group's calls, which take turns as NCCL ignores tags.

    - `lock`: Held by the call that runs.
    - `numbers`: Numbers of calls.
    - `thread`: One thread for calls on CPUs, once one was asynchronous (`is_in_use`).
    - `worker`: Identifier of that thread, None before its first call.
    - `connected`: Devices on which the group has communicated.
    - `streams`: {device: stream of asynchronous calls}.
    """

    def __init__(self) -> None:
        self.lock, self.numbers = Lock(), count()
        self.thread = ThreadPoolExecutor(1, "collective")
        self.is_in_use = False
        self.worker: int | None = None
        self.connected: set[torch.device] = set()
        self.streams: dict[torch.device, Any] = {}


def _order_of(group: Any) -> _Order:
    """Order of a group's calls; all generated modules share it, so it is kept in `torch.distributed`."""
    orders = vars(dist).setdefault("_orders_of_schedules", WeakKeyDictionary())
    order: _Order = orders.setdefault(group, _Order())
    return order


class Work:
    """A collective under way, as `torch.distributed` returns it for ``async_op=True``."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the collective; on a GPU only the current stream waits. Re-raises its exception."""
        del timeout  # the process group's own timeout applies to each message
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """True if the collective has ended; on a GPU, if all of its work is queued."""
        return bool(self._future.done())

    def get_future(self) -> Any:
        """Return a `torch.futures.Future` of a list that holds the output."""
        return self._future


class Collective:
    """The schedule on a process group, by default on all ranks."""

    def __init__(self, group: Any = None) -> None:
        if (ranks := dist.get_world_size(group)) < 0:
            raise ValueError("this rank is not in the group; make the object at its members only")
        if ranks != NUM_RANKS:
            raise ValueError(f"found {ranks} ranks; the schedule is for {NUM_RANKS}")
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(group)
        self.rounds = ROUNDS[self.rank]
        self._peers = [dist.get_global_rank(self.group, rank) for rank in range(NUM_RANKS)]
        self._order = _order_of(self.group)
        self._tag = TAG
        self._supported: set[Any] = set()

    def all_reduce(
        self, tensor: Any, op: Any = dist.ReduceOp.SUM, *, async_op: bool = False, out: Any = None
    ) -> Work | None:
        """Reduce a tensor over all ranks, in place unless `out` is given."""
        combine = self._combine(op, tensor)
        target = tensor if out is None else out
        self._check(tensor, target, 1, 1)

        def call() -> None:
            self._in_blocks(None, target, own=tensor, combine=combine, average=op == dist.ReduceOp.AVG)

        return self._start(call, (target, tensor), async_op)

    def reduce(
        self, tensor: Any, dst: int | None = None, op: Any = dist.ReduceOp.SUM, *, async_op: bool = False
    ) -> Work | None:
        """Reduce a tensor to the schedule's root, in place; tensors of other ranks stay unchanged."""
        self._check_root(dst, "dst")
        combine, is_root = self._combine(op, tensor), self.rank == ROOT

        def call() -> None:
            source, target = (None, tensor) if is_root else (tensor, None)
            self._in_blocks(source, target, combine=combine, average=op == dist.ReduceOp.AVG)

        return self._start(call, (tensor,), async_op)

    def broadcast(self, tensor: Any, src: int | None = None, *, async_op: bool = False) -> Work | None:
        """Copy the root's tensor to all ranks."""
        self._check_root(src, "src")
        return self._start(lambda: self._in_blocks(None, tensor), (tensor,), async_op)

    def all_gather_single(
        self, output_tensor: Any, input_tensor: Any, *, async_op: bool = False
    ) -> Work | None:
        """Gather every rank's input; in place if the input is the rank's own block of the output."""
        self._check(input_tensor, output_tensor, 1, NUM_RANKS)

        def call() -> None:
            self._in_blocks(None, output_tensor, own=input_tensor, own_block=self.rank, blocks=NUM_RANKS)

        return self._start(call, (output_tensor, input_tensor), async_op)

    all_gather_into_tensor = all_gather_single

    def reduce_scatter_single(
        self, output: Any, input: Any, op: Any = dist.ReduceOp.SUM, *, async_op: bool = False
    ) -> Work | None:
        """Reduce all inputs, one block for each rank; in place if the output is its block of the input."""
        combine = self._combine(op, input)
        self._check(input, output, NUM_RANKS, 1)

        def call() -> None:
            average = op == dist.ReduceOp.AVG
            own = _blocks(input, NUM_RANKS)[self.rank]
            source = self._without_overlap(input, output, own)
            self._in_blocks(source, output, own=own, combine=combine, average=average)

        return self._start(call, (output, input), async_op)

    reduce_scatter_tensor = reduce_scatter_single

    def all_to_all_single(self, output: Any, input: Any, *, async_op: bool = False) -> Work | None:
        """Send block d of the input to rank d, for all d; all blocks have the same length."""
        self._check(input, output, NUM_RANKS, NUM_RANKS)

        def call() -> None:
            source = self._without_overlap(input, output, None)
            own = _blocks(source, NUM_RANKS)[self.rank]
            self._in_blocks(source, output, own=own, own_block=self.rank, blocks=NUM_RANKS)

        return self._start(call, (output, input), async_op)

    def gather(
        self,
        tensor: Any,
        gather_list: list[Any] | None = None,
        dst: int | None = None,
        *,
        async_op: bool = False,
    ) -> Work | None:
        """Gather every rank's tensor into the root's list."""
        self._check_root(dst, "dst")
        gathered = self._check_list(tensor, gather_list, "gather_list")

        def call() -> None:
            if self.rank != ROOT:
                self._in_blocks(tensor, None)
                return
            whole = tensor.new_empty(NUM_RANKS * tensor.numel())
            self._in_blocks(None, whole, own=tensor, own_block=self.rank, blocks=NUM_RANKS)
            for each, block in zip(gathered, whole.view(NUM_RANKS, -1), strict=True):
                each.copy_(block.view(tensor.shape))

        return self._start(call, (tensor, *gathered), async_op)

    def scatter(
        self,
        tensor: Any,
        scatter_list: list[Any] | None = None,
        src: int | None = None,
        *,
        async_op: bool = False,
    ) -> Work | None:
        """Send each rank its tensor from the root's list."""
        self._check_root(src, "src")
        scattered = self._check_list(tensor, scatter_list, "scatter_list")

        def call() -> None:
            if self.rank != ROOT:
                self._in_blocks(None, tensor)
                return
            whole = torch.cat([each.reshape(-1) for each in scattered])
            self._in_blocks(whole, tensor, own=scattered[self.rank])

        return self._start(call, (tensor, *scattered), async_op)

    def _in_blocks(
        self, source: Any, target: Any, *, own: Any = None, own_block: int = 0, blocks: int = 1,
        combine: Any = torch.add, average: bool = False,
    ) -> None:  # fmt: skip
        """Copy this rank's own block into the target, which has `blocks` blocks; then run all rounds.

        The source has one block if there is no target. Tensors that are not contiguous are copied.
        """
        flat_source = None if source is None else source.contiguous().view(-1)
        flat = None if target is None else target.contiguous().view(-1)
        some: Any = flat_source if flat is None else flat
        if flat is not None and own is not None:
            mine = _blocks(flat, blocks)[own_block]
            if mine.data_ptr() != own.data_ptr() or not own.is_contiguous():
                mine.copy_(own.reshape(-1))
        self._run(flat_source, flat, some.numel() // blocks, combine)
        if average and flat is not None:
            flat.div_(NUM_RANKS)
        if flat is not None and flat.data_ptr() != target.data_ptr():
            target.copy_(flat.view(target.shape))

    def _run(self, source: Any, target: Any, block: int, combine: Any) -> None:
        """Run all rounds on flat tensors; `block` is the number of elements of a block."""
        begins = _begins(block)
        some = source if target is None else target
        staged: dict[int, tuple[Any, list[int]]] = {}

        def view(place: In | Out | Staged) -> Any:
            end = place.first + place.num
            if isinstance(place, Staged):
                tensor, offsets = staged[place.number]
                return tensor[offsets[place.first] : offsets[end]]
            first, last = (slot // PARTS * block + begins[slot % PARTS] for slot in (place.first, end))
            return (source if isinstance(place, In) else target)[first:last]

        for part in self.rounds:
            for number, parts in part.stage.items():
                offsets = [0, *accumulate(begins[p + 1] - begins[p] for p in parts)]
                staged[number] = (some.new_empty(offsets[-1]), offsets)
            operations = []
            for peer, place in part.receive.items():
                operations.append((dist.irecv, view(place), peer))
            for peer, places in part.send.items():
                views = [view(place) for place in places]
                operations.append((dist.isend, views[0] if len(views) == 1 else torch.cat(views), peer))
            batch = [
                # As bytes, so that any type travels over any backend.
                dist.P2POp(function, tensor.view(torch.uint8), self._peers[peer], self.group, self._tag)
                for function, tensor, peer in operations
                if tensor.numel()
            ]
            for work in dist.batch_isend_irecv(batch) if batch else ():
                work.wait()
            for local in part.then:
                operands = [view(place) for place in local.operands]
                if len(operands) == 1:
                    view(local.target).copy_(operands[0])
                else:
                    combine(*operands, out=view(local.target))

    def _connect(self, device: Any) -> None:
        """Let all ranks take part in the group's first communication, as NCCL requires."""
        if device not in self._order.connected:
            dist.all_reduce(torch.zeros(1, device=device), group=self.group)
            self._order.connected.add(device)

    def _start(self, call: Any, tensors: tuple[Any, ...], async_op: bool) -> Work | None:
        """Run a call: an asynchronous one in a stream of its own on a GPU, and in a thread on a CPU."""
        device, order = tensors[0].device, self._order
        self._connect(device)
        # A thread has modes of its own; inference tensors can only be changed in inference mode.
        is_inference = torch.is_inference_mode_enabled() or any(each.is_inference() for each in tensors)

        def in_turn() -> None:
            with order.lock, torch.inference_mode(is_inference), torch.no_grad():
                self._tag = TAG + next(order.numbers) % _TAGS
                call()

        if device.type == "cuda" and async_op:
            stream = order.streams.setdefault(device, torch.cuda.Stream(device))
            stream.wait_stream(torch.cuda.current_stream(device))
            future = torch.futures.Future(devices=[device])
            with torch.cuda.stream(stream):
                in_turn()
                future.set_result(list(tensors[:1]))  # records an event in the stream
            for tensor in tensors:
                tensor.record_stream(stream)
            return Work(future)
        # A call from the worker thread itself runs at once, as it cannot wait for that thread.
        is_direct = device.type == "cuda" or not order.is_in_use or order.worker == get_ident()
        if is_direct and not async_op:
            in_turn()
            return None
        # One thread, so that calls take turns in the same order at all ranks.
        order.is_in_use = True
        future = torch.futures.Future()

        def run() -> None:
            order.worker = get_ident()
            try:
                in_turn()
                future.set_result(list(tensors[:1]))
            except BaseException as error:
                future.set_exception(error)

        order.thread.submit(run)
        work = Work(future)
        if async_op:
            return work
        work.wait()
        return None

    def _combine(self, op: Any, tensor: Any) -> Any:
        # A `ReduceOp` object equals its kind but has another hash.
        kind = next((each for each in _COMBINE if op == each), None)
        if kind is None:
            raise ValueError(f"found {op}; expected SUM, AVG, PRODUCT, MAX, MIN, BAND, BOR or BXOR")
        if op == dist.ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(f"found AVG of {tensor.dtype}; expected a floating-point type: reduce by SUM")
        combine = _COMBINE[kind]
        case = combine, tensor.dtype, tensor.device
        if case not in self._supported:  # one element shows this before any message is sent
            one = torch.ones(1, device=tensor.device).to(tensor.dtype)
            try:
                combine(one, one, out=one.clone())
            except RuntimeError as error:
                found = f"found {kind} of {tensor.dtype}; expected a type that torch.{combine.__name__}"
                raise ValueError(f"{found} supports on {tensor.device.type}: convert the tensor") from error
            self._supported.add(case)
        return combine

    def _check(self, source: Any, target: Any, inputs: int, outputs: int) -> None:
        """Raise `ValueError` unless source has `inputs` blocks and target `outputs` blocks, all alike."""
        if source.dtype != target.dtype or source.device != target.device:
            raise ValueError(f"found {source.dtype} and {target.dtype}; expected one type and one device")
        if source.numel() * outputs != target.numel() * inputs or source.numel() % inputs:
            found = f"found {source.numel()} and {target.numel()} elements"
            raise ValueError(f"{found}; expected {inputs} and {outputs} blocks of one length")

    def _check_root(self, rank: int | None, name: str) -> None:
        if rank is not None and ROOT is not None and rank != self._peers[ROOT]:
            raise ValueError(f"found {name}={rank}; the schedule is for {name}={self._peers[ROOT]}")

    def _check_list(self, tensor: Any, tensors: list[Any] | None, name: str) -> list[Any]:
        if self.rank == ROOT and [each.shape for each in tensors or ()] != [tensor.shape] * NUM_RANKS:
            raise ValueError(f"found an invalid {name}; expected {NUM_RANKS} tensors of the root's shape")
        return list(tensors or ()) if self.rank == ROOT else []

    def _without_overlap(self, source: Any, target: Any, own: Any) -> Any:
        """Return the source, or a copy if the target overlaps it outside this rank's own block."""
        begin, end = source.data_ptr(), source.data_ptr() + source.numel() * source.element_size()
        last = target.data_ptr() + target.numel() * target.element_size()
        overlaps = target.data_ptr() < end and begin < last
        in_place = own is not None and own.data_ptr() == target.data_ptr() and source.is_contiguous()
        return source.clone() if overlaps and not in_place else source


def _blocks(tensor: Any, blocks: int) -> Any:
    """Tensor as `blocks` flat rows of equal length; a view if it is contiguous."""
    return tensor.contiguous().view(blocks, -1)


def _begins(block: int) -> list[int]:
    """First element of each part of a block, and the block's end; lengths differ by at most one element."""
    return [part * block // PARTS for part in range(PARTS + 1)]
