"""Dataclasses that describe a runtime: its limits, file formats, launch costs and functions.

Functions may be given as ``"module:name"``, which is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, TypeVar

from taccl._internal.arguments import checked, known_word
from taccl.errors import InputError, TacclError
from taccl.topology.tuning import PROTOCOLS

T = TypeVar("T")
#: Protocols of programs, as runtimes spell them.
_PROTOCOLS = ("Simple", "LL", "LL128")


@checked
@dataclass(frozen=True, slots=True)
class Launch:
    """Launch costs of a runtime, as predictions and plans add them to a schedule's finish.

    Parameters
    ----------
    us : float or None
        Launch time in us, in place of the launch time of the machine's library; None to keep the latter.
    source : str
        Origin of the figures.
    one_kernel : bool
        True if one kernel runs the whole collective, without a library's base latency.
    hops_us : (float, float)
        Latency in us of a step in which all pairs communicate, under LL and simple, respectively.
    shares : (float, float)
        Rate of the kernel's copies: under LL as a share of NCCL's rate, under simple as a share of the rate
        within a node.
    one_shot : bool
        True if sums can also take one step, in which all pairs exchange whole buffers.
    falls_back : bool
        True if the library's own algorithms run where they are faster, or no file applies.
    predict : function
        From (costs, collective, ranks, nodes, bytes) to a `taccl.Prediction`, in place of the times of a
        library or of one kernel.

    Raises
    ------
    InputError
        If a time is negative, or a share is not above 0.
    """

    us: float | None
    source: str
    one_kernel: bool = False
    hops_us: tuple[float, float] = (PROTOCOLS[0].ring_hop_us, PROTOCOLS[2].ring_hop_us)
    shares: tuple[float, float] = (0.5, 1.0)
    one_shot: bool = True
    falls_back: bool = False
    predict: Any = ""

    def __post_init__(self) -> None:
        for where, figure in (("us", self.us or 0.0), ("hops_us", min(self.hops_us))):
            if figure < 0:
                raise InputError(f"found {figure:g}; expected a time of at least 0", where=f"launch: {where}")
        if min(self.shares) <= 0:
            raise InputError(f"found {min(self.shares):g}; expected shares above 0", where="launch: shares")


@checked
@dataclass(frozen=True, slots=True)
class Runtime:
    """Runtime that executes programs, such as MSCCL or MSCCL++: its limits, launch costs and functions.

    A function is given itself, or as ``"module:name"``. Functions may be left out: `taccl.plan`, `predict`
    and ``taccl run`` then do not offer the runtime.

    Parameters
    ----------
    name, title : str
        Name in options, and in sentences.
    reads : str
        Format of its files, such as ``"msccl-xml"``; empty if it has none of its own.
    protocols : tuple of str
        Protocols that it supports, among ``"Simple"``, ``"LL"`` and ``"LL128"``.
    max_steps : int
        Max steps per threadblock that its parser of MSCCL XML accepts, including steps that only wait.
    max_threadblocks : int
        Max threadblocks of a rank; for MSCCL++, the number that a V100 surely runs concurrently.
    max_channels : int
        Max channels of a program (``MAXCHANNELS``).
    max_files : int, optional
        Max files that it loads; None if there is no limit that plans reach.
    renamed : mapping
        {MSCCL's name of a collective: the runtime's name}.
    takes_custom : bool
        True if the runtime accepts custom collectives.
    includes_most : bool
        True if the runtime uses a file also at the largest of its sizes.
    usual_for : str
        ``"nvidia"``, ``"amd"`` or ``"any"``: plans for GPUs of this maker include files of the runtime by
        default. Empty if only on request.
    why_not : function
        From (runtime, collective, topology, protocol) to the reason why it cannot run the collective under
        the protocol, or under any protocol if that is empty; empty text if it can.
    lower : function
        From a schedule and options of `taccl.lower` to a program.
    check : function
        Called with (runtime, program); raises `ExportError` if its files cannot hold the program.
    files : function
        From (runtime, plan) to `PlanFiles`, what `taccl.plan` writes for it.
    launch : Launch, optional
        Launch costs; None if predictions do not know the runtime.
    run : function
        Executes the program that its first argument returns; takes `sizes`, `dtype` (or None),
        `repetitions`, `timeout_s`, `seed` and `note` by name, and returns a `RunReport`.
    run_options : tuple of str
        Options of ``taccl run`` that this runtime supports and others may not, such as ``"sizes"``.
    lower_s : float
        Approximate CPU seconds per send to lower a schedule and to check its program, by which plans decide
        whether time suffices for a program.

    Raises
    ------
    InputError
        If a protocol is unknown.
    """

    name: str
    title: str = ""
    reads: str = ""
    protocols: tuple[str, ...] = _PROTOCOLS
    max_steps: int = 256
    max_threadblocks: int = 216
    max_channels: int = 32
    max_files: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    takes_custom: bool = True
    includes_most: bool = False
    usual_for: str = ""
    why_not: Any = ""
    lower: Any = "taccl.program.lower:lower"
    check: Any = ""
    files: Any = ""
    launch: Launch | None = None
    run: Any = ""
    run_options: tuple[str, ...] = ()
    lower_s: float = 8e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)
        for each in self.protocols:
            known_word(each, _PROTOCOLS, f"runtime {self.name}: protocols")

    @property
    def reads_xml(self) -> bool:
        """True if the runtime reads MSCCL XML."""
        return self.reads == "msccl-xml"

    @property
    def launch_us(self) -> float | None:
        """Launch time in us that plans add; None if a library's own launch time counts instead."""
        return None if self.launch is None or self.launch.falls_back else self.launch.us

    def made(self, role: str, kind: type[T], *args: Any, **options: Any) -> T:
        """Call one of the runtime's functions; raise `InputError` if its result is not of type `kind`.

        Parameters
        ----------
        role : str
            Field that holds the function.
        kind : type
        args, options
            Arguments of the function.
        """
        found = self.outcome(role, *args, **options)
        if not isinstance(found, kind):
            said = f"{role} returned a {type(found).__name__}; expected a {kind.__name__}"
            raise InputError(f"{self.title}: {said}", where="runtime")
        return found

    def outcome(self, role: str, *args: Any, **options: Any) -> Any:
        """Call one of the runtime's functions and return its result.

        Raises `InputError` with the runtime's name if a function of another package fails or is missing.

        Parameters
        ----------
        role : str
            Field that holds the function; ``"predict"`` is that of `launch`.
        args, options
            Arguments of the function.
        """
        function = getattr(self.launch if role == "predict" else self, role)
        try:
            return called(function)(*args, **options)
        except TacclError:
            raise
        except Exception as error:
            home = function if isinstance(function, str) else getattr(function, "__module__", "")
            if str(home).startswith("taccl."):
                raise
            said = f"{self.title}: {role} failed ({type(error).__name__}: {error}); mend the runtime"
            raise InputError(said, where="runtime") from error

    def reason_against(self, collective: Any, topology: Any, protocol: str = "") -> str:
        """Reason why the runtime cannot run a collective (under a protocol, if given); empty if it can.

        Parameters
        ----------
        collective : Collective
        topology : Topology
        protocol : str
            A protocol in small letters; empty to ask about the collective under any protocol.
        """
        return str(self.outcome("why_not", self, collective, topology, protocol)) if self.why_not else ""


def called(function: Any) -> Callable[..., Any]:
    """Return a function; import it first if it is given as ``"module:name"``."""
    found: Callable[..., Any] = resolve_name(function) if isinstance(function, str) else function
    return found


@checked
@dataclass(frozen=True, slots=True)
class ServedSizes:
    """Sizes for which a runtime uses one file, in place or out of place.

    Parameters
    ----------
    file : str
        Name of the file.
    min_bytes, max_bytes : int
        First and last size.
    in_place : bool
        True for calls with input and output in one buffer.
    unit_bytes : int
        The file serves only sizes that are multiples of this number of bytes.
    num_chunks : int
        Runtimes of MSCCL XML use the file only for numbers of elements that are multiples of this.
    """

    file: str
    min_bytes: int
    max_bytes: int
    in_place: bool
    unit_bytes: int = 1
    num_chunks: int = 1


@checked
@dataclass(frozen=True, slots=True)
class PlanFiles:
    """Files of a plan for one runtime.

    Parameters
    ----------
    contents : mapping
        {name of a file in the folder of the plan: its text}.
    ranges : sequence of mapping
        For each range of the plan, {key in the index: name of a file}.
    served : sequence of ServedSizes
        Sizes that each file serves.
    registration : mapping
        {file that registers the others: how to use it}, such as ``"with msccl: source"``.
    remarks : sequence of str
        Remarks for the text on the calls that the files serve, for example that the runtime does not compare
        roots.
    notes : sequence of str
        Notes for the plan.
    """

    contents: Mapping[str, str]
    ranges: Sequence[Mapping[str, str]]
    served: Sequence[ServedSizes]
    registration: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of_ranges(cls, plan: Any, key: str, ending: str, write: Callable[[Any], str]) -> PlanFiles:
        """Write one file for each size range of a plan.

        Parameters
        ----------
        plan : Plan
        key : str
            Key of the file names in the plan's index.
        ending : str
            End of the file names, such as ``".json"``.
        write : callable
            From a `PlanRange` to the text of its file.
        """
        names = [f"range-{number:02}{ending}" for number in range(1, len(plan.ranges) + 1)]
        served = [
            ServedSizes(name, each.min_bytes, each.max_bytes, each.program.in_place)
            for name, each in zip(names, plan.ranges, strict=True)
        ]
        texts = map(write, plan.ranges)
        return cls(dict(zip(names, texts, strict=True)), [{key: name} for name in names], served)


@checked
@dataclass(frozen=True, slots=True)
class RunReport:
    """Outcome of ``taccl run``.

    Parameters
    ----------
    text : str
        Report for people.
    values : mapping
        Plain values for ``--json``.
    failure : str
        Faults in words; empty if every output was right.
    log : str
        Benchmark log for `taccl.fit`; empty if the runtime writes none.
    """

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    log: str = ""
