"""Probe: latency and bandwidth of every pair of hosts, the topology inferred from them, and its work."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Number, checked
from taccl._internal.names import shown
from taccl._internal.reading import plain_values
from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.formats.files import write_whole
from taccl.placement.few_pairs import most_pairs
from taccl.placement.hosts import USUAL_GB_PER_S, USUAL_LATENCY_US, USUAL_OVERSUBSCRIPTION, ProbedHosts
from taccl.topology.clusters import asymmetry, common_levels, completed, levels
from taccl.topology.topology import Topology

#: Number of messages sent before the timed ones.
WARM_UP = 3
#: `FEWER`: ratio of the number of small messages to that of large ones.
#: `FEWEST`: minimum number of large messages in a pass.
FEWER, FEWEST = 4, 3
#: Number of passes over all pairs, so far apart in time that temporary load affects only some of them.
PASSES = 4
#: Minimum number of hosts for a probe of few pairs; with fewer hosts it would measure nearly all pairs.
_FEWEST_HOSTS = 32


@dataclass(frozen=True)
class ProbeWork:
    """Work of a probe: its pairs, rounds, bytes and minimum time.

    - `pairs`, `rounds`: Number in each pass. For a probe of few pairs: the maximum number of pairs, and the
      minimum number of rounds.
    - `num_bytes`: Bytes sent by all ranks in all passes.
    - `least_s`: Minimum time in seconds at the usual latency and rate, if all pairs of a round are measured
      in parallel.
    - `is_few`: True for a probe of few pairs.
    """

    num_ranks: int
    passes: int
    pairs: int
    rounds: int
    num_bytes: int
    least_s: float
    is_few: bool

    def __str__(self) -> str:
        every = self.num_ranks * (self.num_ranks - 1) // 2
        pairs = f"{self.pairs} of {every} pairs in {format_count(self.rounds, 'round')}"
        if self.is_few:
            pairs = f"at most {self.pairs} of {every} pairs"
        passes = f"{self.passes} passes over {pairs}, {self.num_bytes / 1e9:.3g} GB sent"
        usual = f"{USUAL_LATENCY_US:g} us and {USUAL_GB_PER_S:g} GB/s"
        return (
            f"probe of {self.num_ranks} ranks: {passes}; at least {self.least_s:.2g} s at {usual}, longer "
            "where ranks outnumber cores"
        )


def is_few(num_ranks: int) -> bool:
    """True if there are enough ranks that probing only some pairs saves much work."""
    return num_ranks >= _FEWEST_HOSTS


def passes_of(repetitions: int, passes: int | None) -> tuple[int, int]:
    """(passes over all pairs, small messages of a pair in each pass); the default is four passes."""
    passes = passes or min(PASSES, repetitions)
    return passes, max(1, repetitions // passes)


def probe_work(
    num_ranks: int, *, rounds: int, size: int, repetitions: int, few: bool, passes: int | None = None
) -> ProbeWork:
    """Work of a probe of `rounds` rounds, or of few pairs, with large messages of `size` bytes."""
    passes, each = passes_of(repetitions, passes)
    large = max(FEWEST, each // FEWER) + WARM_UP
    small = each + WARM_UP
    pairs, together = rounds * (num_ranks // 2), num_ranks // 2
    if few and is_few(num_ranks):
        pairs = most_pairs(num_ranks)
        rounds = ceil(pairs / together)
    pair_bytes = 2 * (large * (size + 1) + 2 * small)
    pair_us = 2 * (2 * (small + large) * USUAL_LATENCY_US + large * size / USUAL_GB_PER_S / 1000)
    return ProbeWork(
        num_ranks, passes, pairs, rounds, passes * pairs * pair_bytes, passes * rounds * pair_us / 1e6,
        few and is_few(num_ranks),
    )  # fmt: skip


PortUse = Literal["shared", "none"]
#: Fields of `Probe` that hold one matrix per measuring pass.
REPEATS = ("latency_repeats_us", "bandwidth_repeats_gb_per_s")
#: Ratio of the two directions of a pair above which a figure is rejected as a mistake.
MAX_ASYMMETRY = 3.0
#: {matrix: largest entry}. A topology's betas, rounded to 0.001 us per MB, cannot represent faster rates.
_MOST = {"latency_us": 1e9, "bandwidth_gb_per_s": 1e6}
_GPU = re.compile(r"(GPU|CUDA|Device)[ :_-]?\d+", re.IGNORECASE)


@checked
@dataclass(frozen=True, eq=False)
class Probe:
    """Measured latency and bandwidth between hosts, as matrices: the row's host sends to the column's.

    Parameters
    ----------
    hosts : tuple of str
        Host of each rank; the name of a host with several ranks occurs several times.
    latency_us, bandwidth_gb_per_s : (num_hosts, num_hosts) array, optional
        Medians, one way; at least one matrix is needed. The diagonal is unused. If `sampled`, pairs that were
        not measured are nan in both directions.
    sampled : bool
        Whether pairs may be missing.
    uplinks : tuple of (tuple of int, float)
        Ranks that share an uplink, found by simultaneous messages, and its GB/s.
    latency_spread : float, optional
        Interquartile range divided by median of the latencies of a pair; median over all pairs.
    latency_repeats_us, bandwidth_repeats_gb_per_s : (num_passes, num_hosts, num_hosts) array, optional
        The same matrices for each pass; nan for pairs missing in a pass. `taccl.reorder` judges an order on
        passes that were not used to choose it.
    clusters : tuple of tuple of int, optional
        Cluster of every host, level by level, the innermost first, if known. Default: clusters are found from
        the distances.
    assumed : tuple of str
        Figures that are assumed or estimated rather than measured.
    gpus : tuple of str
        Model of the GPU of each rank, such as ``"Tesla V100-SXM2-16GB"``; empty if unknown.

    Raises
    ------
    InputError
        If a matrix is not square, lacks an entry, has an entry that is not positive or beyond 1e6 GB/s or
        1e9 us, or has two directions of a pair that differ by more than a factor of 3. The message names row
        and column.
    """

    hosts: tuple[str, ...]
    latency_us: NDArray[np.float64] | None = None
    bandwidth_gb_per_s: NDArray[np.float64] | None = None
    sampled: bool = False
    uplinks: tuple[tuple[tuple[int, ...], float], ...] = ()
    latency_spread: float | None = None
    latency_repeats_us: NDArray[np.float64] | None = None
    bandwidth_repeats_gb_per_s: NDArray[np.float64] | None = None
    clusters: tuple[tuple[int, ...], ...] | None = None
    assumed: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus and len(self.gpus) != self.num_hosts:
            said = f"found {format_count(len(self.gpus), 'model')} for {format_count(self.num_hosts, 'GPU')}"
            raise InputError(f"{said}; expected one for each, or none", where="probe.gpus")
        if self.latency_us is None and self.bandwidth_gb_per_s is None:
            said = "found neither latency_us nor bandwidth_gb_per_s; give one of them"
            raise InputError(said, where="probe")
        for name in ("latency_us", "bandwidth_gb_per_s"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._checked(name, getattr(self, name)))
        for name in REPEATS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._repeats(name, getattr(self, name)))
        for ranks, rate in self.uplinks:
            if not (rate > 0 and math.isfinite(rate)) or not set(ranks) <= set(range(self.num_hosts)):
                said = f"found ranks {list(ranks)[:8]} at {rate} GB/s"
                raise InputError(f"{said}; expected ranks of the probe, above 0 GB/s", where="probe.uplinks")
        for labels in self.clusters or ():
            if len(labels) != self.num_hosts or not all(
                isinstance(each, int) and each >= 0 for each in labels
            ):
                said = f"expected a number from 0 on for each of {format_count(self.num_hosts, 'host')}"
                raise InputError(f"found a level {labels!s:.60}; {said}", where="probe.clusters")

    @property
    def num_hosts(self) -> int:
        """Number of entries of `hosts`, one per rank: a host with several ranks counts several times."""
        return len(self.hosts)

    @property
    def is_one_server(self) -> bool:
        """True if all ranks are GPUs of one server: their host names are equal, or ``"GPU 0"`` and so on."""
        if self.clusters is not None:
            return False
        return len(set(self.hosts)) == 1 or all(map(_GPU.fullmatch, self.hosts))

    def _checked(self, name: str, values: Any) -> NDArray[np.float64]:
        where = f"probe.{name}"
        try:
            matrix = np.array(values, dtype=np.float64)
        except (OverflowError, TypeError, ValueError):
            raise InputError("found rows of different lengths, or no numbers", where=where) from None
        count = self.num_hosts
        if count < 2 or matrix.shape != (count, count):
            said = f"found {' x '.join(map(str, matrix.shape))} entries for {format_count(count, 'host')}"
            raise InputError(f"{said}; expected a square of two or more", where=where)
        np.fill_diagonal(matrix, np.nan)
        off = ~np.eye(count, dtype=bool)
        hole = np.isnan(matrix) & off
        if self.sampled:
            hole &= ~hole.T  # a missing entry is an error only if the other direction was measured
        for wrong, what in (
            (hole, "expected a number for every pair; measure it, or give a probe that is sampled"),
            (off & (matrix <= 0), "expected a number above 0"),
            (matrix > _MOST[name], f"expected at most {_MOST[name]:g}; correct the figure, or its unit"),
            (
                matrix > MAX_ASYMMETRY * matrix.T,
                f"expected a factor of at most {MAX_ASYMMETRY:g}; measure the pair again",
            ),
        ):
            if wrong.any():
                row, column = np.argwhere(wrong)[0].tolist()
                there, back = ("no entry" if np.isnan(each) else f"{each:g}"
                               for each in (matrix[row, column], matrix[column, row]))  # fmt: skip
                names = f"{shown(self.hosts[row], 60)} to {shown(self.hosts[column], 60)}"
                found = f"found {there} in row {row}, column {column} ({names}), and {back} the other way"
                raise InputError(f"{found}; {what}", where=where)
        matrix.setflags(write=False)
        return matrix

    def _repeats(self, name: str, values: Any) -> NDArray[np.float64]:
        where = f"probe.{name}"
        try:
            passes = np.array(values, dtype=np.float64)  # None becomes nan
        except (OverflowError, TypeError, ValueError):
            raise InputError("found passes of different shapes, or no numbers", where=where) from None
        if passes.ndim != 3 or not len(passes) or passes.shape[1:] != (self.num_hosts, self.num_hosts):
            said = f"found {' x '.join(map(str, passes.shape))} entries"
            raise InputError(
                f"{said}; expected passes of {format_count(self.num_hosts, 'host')}", where=where
            )
        if not (np.isnan(passes) | ((passes > 0) & np.isfinite(passes))).all():
            raise InputError("found an entry that is not a finite number above 0; leave it out", where=where)
        passes.setflags(write=False)
        return passes

    @property
    def distance(self) -> NDArray[np.float64]:
        """Latency of each pair in us, else time per byte if there are none; missing pairs are estimated."""
        if self.latency_us is not None:
            return self.filled(self.latency_us)
        assert self.bandwidth_gb_per_s is not None
        return self.filled(1.0 / self.bandwidth_gb_per_s)

    @cached_property
    def levels(self) -> list[NDArray[np.int64]]:
        """Cluster of every host at each level, as given, or else as found from the distances."""
        if self.clusters is not None:
            return [np.array(labels, dtype=np.int64) for labels in self.clusters]
        return levels(self.distance)

    def filled(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate missing pairs of a matrix by the median of pairs with equally many common cluster levels.

        Without given clusters the estimate is by shortest paths over known pairs (`completed`).
        """
        if self.clusters is None or not np.isnan(matrix).any():
            return completed(matrix)
        shared = common_levels(self.levels, self.num_hosts)
        found = matrix.copy()
        known = ~np.isnan(matrix) & ~np.eye(len(matrix), dtype=bool)
        for each in np.unique(shared):
            of_class = known & (shared == each)
            if of_class.any():
                found[np.isnan(matrix) & (shared == each)] = np.median(matrix[of_class])
        return completed(found)

    @property
    def asymmetry(self) -> float:
        """Median over all pairs of the difference between the two directions, relative to their mean."""
        matrix = self.latency_us if self.latency_us is not None else self.bandwidth_gb_per_s
        assert matrix is not None
        return asymmetry(matrix)

    @checked
    def topology(
        self,
        *,
        name: str = "probe",
        bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
        oversubscription: Number = USUAL_OVERSUBSCRIPTION,
        ports: PortUse | None = None,
    ) -> Topology:
        """Topology inferred from the probe: a link per pair, a port per host, and uplinks of clusters.

        Racks, and pods of racks, are found by clustering. GPUs of one server (`is_one_server`) form one node
        without uplinks. Links of a GPU with similar rates share a port; NVLinks and a PCIe slot have separate
        ports. Values that were not measured are assumed, and listed in `assumed` of the topology.

        Parameters
        ----------
        name : str
            Name of the topology.
        bandwidth_gb_per_s : number
            Rate of every host's port in GB/s, if no bandwidths were measured.
        oversubscription : number
            Ratio of the total rate of a rack's hosts to the rate of its uplink, if no uplinks were measured;
            each further level doubles the ratio. 1: uplinks are not modelled.
        ports : {"shared", "none"}
            Whether the links of a host (those of a GPU with similar rates) share one port, which does one
            send at a time, or each link has wires of its own, as xGMI and NVLinks between pairs do.
            Default: shared, as an assumption.
        """
        given = {"bandwidth_gb_per_s": bandwidth_gb_per_s, "oversubscription": oversubscription}
        return ProbedHosts(self, name, given | {"ports": ports}).topology

    def to_dict(self) -> dict[str, Any]:
        """The probe as plain values for JSON; None for matrices that were not measured."""
        return {
            "format": "taccl-probe",
            "version": 1,
            "hosts": list(self.hosts),
            "latency_us": _plain(self.latency_us),
            "bandwidth_gb_per_s": _plain(self.bandwidth_gb_per_s),
            "sampled": self.sampled,
            "uplinks": [{"ranks": list(ranks), "gb_per_s": rate} for ranks, rate in self.uplinks],
            "latency_spread": self.latency_spread,
            **{
                name: [_plain(matrix) for matrix in getattr(self, name)]
                for name in REPEATS
                if getattr(self, name) is not None
            },
            **({} if self.clusters is None else {"clusters": [list(labels) for labels in self.clusters]}),
            **({"assumed": list(self.assumed)} if self.assumed else {}),
            **({"gpus": list(self.gpus)} if self.gpus else {}),
        }

    @classmethod
    @checked
    def from_dict(cls, data: dict[str, Any]) -> Probe:
        """Probe from the values that `to_dict` returned."""
        known = ("latency_us", "bandwidth_gb_per_s", "sampled", "latency_spread")
        with plain_values("probe"):
            uplinks = tuple((tuple(each["ranks"]), float(each["gb_per_s"])) for each in data["uplinks"])
            # Files of earlier versions have no passes.
            repeats: dict[str, Any] = {name: data.get(name) for name in REPEATS}
            clusters = data.get("clusters")
            return cls(
                data["hosts"], uplinks=uplinks, **{name: data[name] for name in known}, **repeats,
                clusters=None if clusters is None else tuple(map(tuple, clusters)),
                assumed=tuple(data.get("assumed", ())), gpus=tuple(data.get("gpus", ())),
            )  # fmt: skip

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the probe as JSON, atomically."""
        write_whole(path, json.dumps(self.to_dict()) + "\n", overwrite=overwrite)

    def __repr__(self) -> str:
        known = [
            f"median {np.nanmedian(matrix):.4g} {unit}"
            for matrix, unit in ((self.latency_us, "us"), (self.bandwidth_gb_per_s, "GB/s"))
            if matrix is not None
        ]
        return (
            f"Probe({format_count(self.num_hosts, 'host')}, {', '.join(known)}{', sampled' * self.sampled})"
        )


def _plain(matrix: NDArray[np.float64] | None) -> list[list[float | None]] | None:
    if matrix is None:
        return None
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]


def median_of_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median along the first axis, ignoring nan unless all values are nan; faster than `np.nanmedian`."""
    ordered = np.sort(values, axis=0)  # puts nan last
    last = np.maximum(np.sum(~np.isnan(values), axis=0) - 1, 0)
    middle = (np.take_along_axis(ordered, each[None], 0)[0] for each in (last // 2, (last + 1) // 2))
    found: NDArray[np.float64] = sum(middle) / 2
    return found
