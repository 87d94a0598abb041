"""Machine models by the names of GPUs in logs, and what is known of these GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from taccl._internal.names import first_of, shown
from taccl.errors import FormatError
from taccl.measure.series import WRONG, Log
from taccl.topology.networks import INSTANCES

#: Model in the name of a GPU: H100, GB300, MI300X, L40S, A6000, RTX 4090.
_MODEL = re.compile(
    r"\b(MI\d{2,3}[A-Z]?|(?:Quadro )?RTX (?:PRO )?\d{4}|TITAN (?:RTX|V)|A\d{4}|[A-Z]{1,2}\d{1,3}[A-Z]?)\b"
)
#: Pattern in names of GPUs whose drivers let them exchange data through host memory only, without P2P.
_NO_PEERS = re.compile(r"\b(GeForce|TITAN)\b")
NO_PEERS = "GeForce and TITAN cards copy through host memory (no P2P)"  #: What is known of these GPUs.
#: Remark on GPUs whose name in the log is that of many kinds.
UNNAMED = "the driver did not know them"
#: ((pattern in names of GPUs without a machine model, what is known), ...); the first match counts.
_UNKNOWN = (
    (re.compile(r"\bMIG\b"), "partitions of a GPU (MIG) have no NVLinks, and copy through host memory"),
    (re.compile(r"\bNVL\b"), "NVLink bridges join some of these boards, which the name does not tell"),
    (re.compile(r"\bMI\d"), "no published log shows the rates that RCCL reaches on them"),
    (re.compile(r"\bP100-SXM"), "their NVLinks are of a version whose rates NCCL's tables no longer have"),
    (re.compile(r"\bGraphics Device\b|\bAMD Radeon Graphics\b"), UNNAMED),
)  # fmt: skip
#: `_ON_PCIE`: pattern in names of PCIe boards, which have no NVSwitch.
#: `_OF_NO_MODEL`: pattern in names of GPUs that no machine model has: NVLink pairs (NVL), parts (MIG).
_ON_PCIE = re.compile(r"\bPCIe?\b", re.IGNORECASE)
_OF_NO_MODEL = re.compile(r"\b(NVL|MIG)\b", re.IGNORECASE)


def generation_of(gpus: Collection[str]) -> str:
    """NVIDIA generation of the named GPUs, such as ``"Hopper"``; empty if it is unknown."""
    from taccl.topology.models import MODELS

    machine, models = machine_by_gpus(gpus), gpu_models(gpus)
    if machine:
        return MODELS[machine].generation
    if len(models) != 1:
        return ""
    found = {each.generation for each in MODELS.values() if models <= set(each.gpus)}
    return found.pop() if len(found) == 1 else ""


def gpu_models(gpus: Iterable[str]) -> set[str]:
    """Models in the names of GPUs: ``{"H100"}``."""
    return {model[1] for name in gpus if (model := _MODEL.search(name))}


def _kinds(gpus: Collection[str]) -> Collection[str]:
    """Models in the names of GPUs; the names themselves if these contain no model."""
    return gpu_models(gpus) or set(gpus)


def check_alike(logs: Sequence[Log], purpose: str) -> None:
    """Check that the logs name one kind of GPU; raises `FormatError` if they do not.

    - `purpose`: Verb for the logs' use in messages, ``"fit"`` or ``"diagnose"``.
    """
    first = next((log for log in logs if log.gpus), None)
    for log in logs:
        boards = {bool(_ON_PCIE.search(name)) for name in log.gpus if gpu_models([name])}
        if len(gpu_models(log.gpus)) > 1 or len(boards) > 1:
            names = first_of([shown(name, 60) for name in sorted(log.gpus)], 4)
            wrong = next((f"; {note}" for note in log.notes if note.startswith(WRONG)), "")
            said = f"found mixed GPUs, {names}; {purpose} equal GPUs only{wrong}"
            raise FormatError(said, where=log.path)
        if first and log.gpus and _kinds(log.gpus) != _kinds(first.gpus):
            here, there = (", ".join(sorted(each.gpus)) for each in (log, first))
            said = f"found {shown(here, 80)}, but {first.path} is of {shown(there, 80)}"
            raise FormatError(f"{said}; {purpose} them one at a time", where=log.path)


def machine_by_gpus(gpus: Collection[str]) -> str | None:
    """The one machine model whose nodes have the named GPUs; None if no model or several models have them."""
    found = machines_by_gpus(gpus)
    return found[0] if len(found) == 1 else None


def machines_by_gpus(gpus: Collection[str]) -> list[str]:
    """All machine models whose nodes have the named GPUs."""
    from taccl.topology.models import MODELS

    models = gpu_models(gpus)
    if len(models) != 1 or any(_OF_NO_MODEL.search(name) for name in gpus):
        return []
    if any("SXM3" in name for name in gpus):
        return ["dgx2"]  # the only machine with SXM3 boards of V100
    able = {name: each for name, each in MODELS.items() if name not in INSTANCES and models <= set(each.gpus)}
    is_board = any(each.pcie is None for each in able.values()) or any("SXM" in name for name in gpus)
    on_pcie = any(_ON_PCIE.search(name) for name in gpus) or not is_board
    found = [name for name, each in able.items() if (each.pcie is not None) == on_pcie]
    # Boards of V100 named SXM2 are in other machines than those named SXM3.
    is_sxm2 = any("SXM2" in name for name in gpus)
    return [machine for machine in found if not (is_sxm2 and machine == "dgx2")]


def unknown_gpus(gpus: Iterable[str]) -> str:
    """Facts about GPUs without a machine model, as a clause; empty if none are known."""
    return next((said for name in gpus for kind, said in _UNKNOWN if kind.search(name)), "")


def has_no_peers(gpus: Iterable[str]) -> bool:
    """True if the drivers of the named GPUs do not let them exchange data directly (P2P)."""
    return any(_NO_PEERS.search(name) for name in gpus)


def may_be_bridged(machine: str, gpus: Iterable[str]) -> bool:
    """True if NVLink bridges may join the named boards on PCIe in pairs, which their names do not tell."""
    from taccl.topology.models import MODELS

    return machine in MODELS and bool(gpu_models(gpus) & set(MODELS[machine].bridged))


def is_stand_in(machine: str, gpus: Iterable[str]) -> bool:
    """True if no GPU is of the model for which a machine model was made, as with H20 on ``dgx-h100``."""
    from taccl.topology.models import MODELS

    own = MODELS[machine].gpus[:1] if machine in MODELS else ()
    return bool(own) and not gpu_models(gpus) & set(own)
