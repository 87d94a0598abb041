"""Collectives of PyTorch by taccl's names: their tensors, PyTorch's own calls, and modules of schedules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from taccl._internal.names import install_extra
from taccl.errors import ExecutionError, InputError
from taccl.formats.torch.module import dump_torch_module
from taccl.formats.torch.rounds import METHODS
from taccl.program.program import Program

INSTALL = install_extra("torch")
#: Max bytes of a text that ranks exchange.
_TEXT_BYTES = 255
#: {collective: (input, output)}; True if that buffer has a block per rank, False if it has one block.
_BLOCKS = {
    "allgather": (False, True), "reduce-scatter": (True, False), "alltoall": (True, True),
    "gather": (False, True), "scatter": (True, False),
}  # fmt: skip


def import_torch() -> Any:
    """Import PyTorch with its module of collectives, ``torch.distributed``.

    Raises `ExecutionError` if PyTorch cannot be loaded, or was built without that module.
    """
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise ExecutionError(f"this needs PyTorch, which cannot be loaded ({error}); {INSTALL}") from None
    if not torch.distributed.is_available():
        raise ExecutionError(f"this PyTorch lacks torch.distributed; {INSTALL}")
    return torch


def require_torch() -> None:
    """Raise `ExecutionError` if PyTorch is not installed; do not load it, as that takes 2 s."""
    if importlib.util.find_spec("torch") is None:
        raise ExecutionError(f"this needs PyTorch, which is not installed; {INSTALL}")


def gather_texts(text: str, group: Any = None) -> list[str]:
    """Gather a text from each rank of a group, cut to 255 bytes.

    Texts are sent as tensors, because `all_gather_object` would unpickle data from other ranks.
    """
    torch = import_torch()
    dist = torch.distributed
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    data = text.encode()[:_TEXT_BYTES]
    mine = torch.tensor(list(data.ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in every]


def module_of(program: Program, name: str = "taccl_collective") -> ModuleType:
    """The module that `taccl convert --to torch` writes for a program, loaded."""
    text = dump_torch_module(program)
    module = ModuleType(name)
    sys.modules[name] = module  # annotations of the module's classes are looked up here
    exec(compile(text, f"<{name}>", "exec"), vars(module))
    return module


def call_of(module: ModuleType, collective: str) -> Callable[..., Any]:
    """Method that runs a module's schedule for a collective, on the group of all ranks."""
    call: Callable[..., Any] = getattr(module.Collective(), METHODS[collective][0])
    return call


def has_root(collective: str) -> bool:
    """True if the collective has a root: one rank that has all data at the start or at the end."""
    return collective in ("broadcast", "reduce", "gather", "scatter")


def num_elements(collective: str, num_ranks: int, size_bytes: int, item_bytes: int) -> int:
    """Number of elements of one rank's block, so that the larger buffer has `size_bytes` or slightly more."""
    blocks = num_ranks if any(_BLOCKS.get(collective, ())) else 1
    return max(1, -(-size_bytes // (item_bytes * blocks)))


def tensors_of(collective: str, source: Any, num_ranks: int, *, is_root: bool) -> tuple[Any, ...]:
    """Tensors to pass to a collective: inputs with the elements of `source`, and outputs of zeros.

    - `source`: Tensor with as many elements as the input.
    """
    if collective in ("allreduce", "reduce", "broadcast"):
        return (source.clone(),)
    if collective in ("gather", "scatter"):
        blocks = list(source.view(num_ranks, -1)) if collective == "scatter" else [source] * num_ranks
        every = [each.clone() if collective == "scatter" else each.new_zeros(each.shape) for each in blocks]
        mine = source.clone() if collective == "gather" else blocks[0].new_zeros(blocks[0].shape)
        return mine, every if is_root else None
    has_many, gives_many = _BLOCKS[collective]
    elements = source.numel() // (num_ranks if has_many else 1)
    return source.new_zeros(elements * (num_ranks if gives_many else 1)), source.clone()


def num_inputs(collective: str, num_ranks: int, elements: int) -> int:
    """Number of elements of a rank's input, for blocks of `elements`."""
    return elements * (num_ranks if _BLOCKS.get(collective, (False,))[0] else 1)


def result_of(collective: str, tensors: tuple[Any, ...], *, is_root: bool) -> list[Any]:
    """Tensors that a call must have written at this rank."""
    if collective in ("reduce", "gather") and not is_root:
        return []
    return list(tensors[1]) if collective == "gather" else [tensors[0]]


def size_of(collective: str, tensors: tuple[Any, ...], num_ranks: int) -> int:
    """Bytes of the larger of a rank's buffers in a call, as nccl-tests counts them."""
    sizes = [int(each.numel() * each.element_size()) for each in tensors if hasattr(each, "numel")]
    if not sizes:
        raise InputError(f"found no tensor; expected those of PyTorch's {collective}", where="tensors")
    return max(sizes) * (num_ranks if collective in ("gather", "scatter") else 1)


def stock_call(collective: str, group: Any = None, root: int = 0) -> Callable[..., Any]:
    """PyTorch's own collective, as a function called like the one of `call_of`; `root` is a global rank."""
    dist = import_torch().distributed
    if not has_root(collective):
        # PyTorch 2.13 renamed two methods; calls under their earlier names give a warning.
        name = next(each for each in reversed(METHODS[collective]) if hasattr(dist, each))
        call = getattr(dist, name)
        return lambda *tensors, **options: call(*tensors, group=group, **options)
    call, place = getattr(dist, collective), "src" if collective in ("broadcast", "scatter") else "dst"
    return lambda *tensors, **options: call(*tensors, group=group, **{place: root, **options})
