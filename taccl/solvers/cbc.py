"""CBC, the executable that PuLP bundles (or one on the PATH), run on files in a temporary folder.

HiGHS writes the model as MPS from arrays; through PuLP's objects this would take a hundred times longer. The
status is read from the first line of the text solution, the values from the binary solution, as the text has
only eight digits.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.highs import highs_with
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = ("highspy", "pulp")

_STOP_GRACE_S = 1.0  # seconds between the interrupt and killing CBC
_OVERRUN_S = 3.0  # CBC rarely checks its time limit, and is interrupted this many seconds after it
_VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)
_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?)"
_SOLUTION = re.compile(rf"^Cbc\d+I (?:Integer s|S)olution (?:of|found of) {_NUMBER}")
_SEARCH = re.compile(
    rf"best solution,? {_NUMBER},? best possible {_NUMBER}|{_NUMBER} best solution, best possible {_NUMBER}"
)
_NODES = re.compile(r"^Enumerated nodes:\s+(\d+)", re.MULTILINE)
_FINAL_BOUND = re.compile(rf"^Lower bound:\s*{_NUMBER}", re.MULTILINE)
_NOTHING = 1e40  # CBC writes the objective 1e+50 when it has no solution
_LOG_PRECISION = 1e-6  # relative loosening of bounds from the log, which shows eight digits


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with version and licence, or a message if CBC cannot run."""
    try:
        path = _executable()
        said = subprocess.run([path, "-quit"], capture_output=True, text=True, timeout=10, check=False).stdout
    except Exception as error:
        return {"message": f"CBC does not run: {error}"}
    return {"solvers": [{"name": "cbc", "version": _version(said), "licence": "EPL-2.0"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return `status`, `values`, `bound`, `nodes`, `version` and `message`."""
    try:
        path = _executable()
    except FileNotFoundError as error:
        return {"status": "unavailable", "message": f"CBC does not run: {error}"}
    model = LinearModel.from_message(payload["model"])
    seed, threads = str(payload["seed"] % 2**31), str(payload["threads"])
    with tempfile.TemporaryDirectory(prefix="cbc-") as folder_name:
        folder = Path(folder_name)
        highs_with(model).writeModel(str(folder / "model.mps"))
        limits = ["-sec", f"{control.time_left_s():.3f}", "-ratioGap", repr(RELATIVE_GAP)]
        command = [path, "model.mps", "-timeMode", "elapsed", *limits]
        command += ["-randomSeed", seed, "-randomCbcSeed", seed]
        if payload["threads"] > 1:
            command += ["-threads", threads]
        if payload["hint"] is not None:
            (folder / "start.txt").write_text(_start(payload["hint"]))
            # With a start, CBC 2.10.3 crashes (SIGSEGV) if time runs out at the root of a preprocessed model.
            command += ["-preprocess", "off", "-mips", "start.txt"]
        command += ["-solve", "-printingOptions", "all"]
        command += ["-solution", "solution.txt", "-saveSolution", "solution.bin"]
        log, late = _run_command(command, folder, control, echo=payload["log"])
        result = _read(folder, log, model)
        if result["status"] == "infeasible" and "or unbounded" in log and control.time_left_s() <= 0:
            # CBC 2.10.3 reports any model as infeasible or unbounded if time runs out while it preprocesses.
            result = {"status": "no-solution", "message": "CBC: stopped on time, while preprocessing"}
    if late and result["status"] == "crashed":
        result = {"status": "no-solution", "message": "CBC: stopped on time, without a solution"}
    if control.stop_requested() and result["status"] in ("feasible", "no-solution"):
        result["message"] = "CBC stopped: interrupted by user"
    counted = _NODES.search(log)
    return {"version": _version(log), "nodes": counted and int(counted.group(1)), **result}


def _executable() -> str:
    """Path of the CBC executable, from PuLP's package or from PATH.

    Raises `FileNotFoundError` if neither PuLP nor the PATH has one.
    """
    try:
        import pulp

        path = pulp.PULP_CBC_CMD(msg=False).path
    except MemoryError:
        raise
    except Exception:
        path = None
    if path and os.access(path, os.X_OK):
        return str(path)
    path = shutil.which("cbc")
    if path is None:
        raise FileNotFoundError("neither PuLP's package nor PATH has one for this platform")
    return path


def _version(log: str) -> str:
    match = _VERSION.search(log)
    return match.group(1) if match else ""


def _start(hint: np.ndarray) -> str:
    known = np.flatnonzero(np.isfinite(hint)).tolist()
    lines = [f"{index} c{index} {float(hint[index])!r} 0" for index in known]
    return "\n".join(["Stopped on time - objective value 0", *lines, ""])


def _run_command(command: list[str], folder: Path, control: Control, *, echo: bool) -> tuple[str, bool]:
    """Run CBC; return its output, and True if the time limit or a stop request ended it."""
    null, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(command, cwd=folder, stdin=null, stdout=pipe, stderr=same, text=True)
    interrupted = threading.Event()

    def end() -> None:
        if not interrupted.is_set():
            interrupted.set()
            process.send_signal(signal.SIGINT)  # CBC then writes its best solution and ends
            try:
                process.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()

    overrun = threading.Timer(control.time_left_s() + _OVERRUN_S, end)
    overrun.daemon = True
    overrun.start()
    try:
        with control.stopping(end):
            log = _follow(process, control, echo=echo)
            code = process.wait()
    finally:
        overrun.cancel()
        process.kill()
        process.wait()
    late = interrupted.is_set() or control.time_left_s() <= 0
    if code in (0, -signal.SIGINT, -signal.SIGKILL) and late:
        return log, True
    return f"{log}\nCBC died of {signal.Signals(-code).name}" if code < 0 else log, False


def _follow(process: subprocess.Popen[str], control: Control, *, echo: bool) -> str:
    """Read CBC's log until it ends, and report the bounds and objectives in it as progress."""
    assert process.stdout is not None
    best, lines = np.inf, []
    for line in process.stdout:
        lines.append(line)
        if echo:
            os.write(2, line.encode())
        bound = None
        if (solution := _SOLUTION.match(line)) is not None and "pass" not in line:
            objective = float(solution.group(1))
        elif (search := _SEARCH.search(line)) is not None:
            objective, bound = (float(group) for group in search.groups() if group is not None)
            bound -= _LOG_PRECISION * abs(bound)
        else:
            continue
        if abs(objective) < _NOTHING:
            best = min(best, objective)
        control.tell(best, bound)
    return "".join(lines)


def _read(folder: Path, log: str, model: LinearModel) -> dict[str, Any]:
    """Result from CBC's files; the status in them decides, as CBC may also write an infeasible point."""
    try:
        with (folder / "solution.txt").open() as file:
            status = file.readline()
    except OSError:
        if "bad_alloc" in log:
            return {"status": "out-of-memory", "message": "CBC ran out of memory"}
        last = log.strip().splitlines()[-1:] or ["nothing"]
        return {"status": "crashed", "message": f"CBC wrote no solution file; its last line: {last[0]}"}
    found = _FINAL_BOUND.search(log)
    bound = None
    if found is not None:
        bound = float(found.group(1)) - _LOG_PRECISION * abs(float(found.group(1)))
    if status.startswith("Optimal"):
        values = _values(folder, model)
        objective = None if values is None else model.objective(values)
        return {"status": "optimal", "values": values, "bound": objective if bound is None else bound}
    if "nfeasible" in status:
        return {"status": "infeasible"}
    reason = f"CBC: {re.split(r' - | [(]', status)[0].strip().lower()}"
    if not status.startswith("Stopped"):
        return {"status": "crashed", "message": f"CBC wrote the status {status.strip()!r}"}
    if "no integer solution" in status or "- objective value" not in status:
        return {"status": "no-solution", "bound": bound, "message": reason}
    values = _values(folder, model)
    if values is None or model.violations(np.where(model.integer, np.round(values), values), 1e-5):
        return {"status": "no-solution", "bound": bound, "message": reason}
    return {"status": "feasible", "values": values, "bound": bound, "message": reason}


def _values(folder: Path, model: LinearModel) -> np.ndarray | None:
    """The variables in CBC's binary solution.

    The file holds two int32 counts, then as float64 the objective, row activities, row duals and variables.
    """
    with contextlib.suppress(OSError, ValueError):
        data = (folder / "solution.bin").read_bytes()
        num_rows, num_columns = np.frombuffer(data, np.int32, count=2)
        if num_columns != model.num_variables:
            return None
        return np.frombuffer(data, np.float64, count=num_columns, offset=16 + 16 * int(num_rows)).copy()
    return None
