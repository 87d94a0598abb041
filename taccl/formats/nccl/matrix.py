"""Parse the matrix of ``nvidia-smi topo -m``: its cells, and the CPU affinity and name of each device.

The parser ignores quote marks of mails and forums, colours, line numbers and text around the matrix.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, permutations

from taccl._internal.arguments import quoted
from taccl._internal.graph_algorithms import graph_of
from taccl._internal.names import first_of
from taccl.errors import FormatError

#: Pattern of one cell of the matrix.
_CELL = r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV[1-9]\d*"
#: Several cells of the matrix without spaces between them.
_GLUED = re.compile(rf"(?:{_CELL}){{2,}}")
#: The last cell of a row, joined to the CPU affinity after it.
_GLUED_AFFINITY = re.compile(rf"({_CELL})(N/A|\d[\d,-]*(?:N/A)?)")
#: `_FIRST_ROW`: row of the first GPU, which begins with its own cell. `_HEAD_WORD`: word of a header.
#: `_ROW`: beginning of a row. `_REST`: further part of a row that began on an earlier line.
_FIRST_ROW = re.compile(r"GPU\d+\s+X(?:\s|$)")
_HEAD_WORD = re.compile(r"[A-Z]+\d*|\d+|A?[a-z]+\d*(?:_\d+)*")
_ROW = re.compile(rf"([A-Za-z]\w*\d)\s+(?:{_CELL})(?:\s|$)")
_REST = re.compile(r"[A-Z\d\s,/-]+")
#: First column of a header after those of devices.
_AFFINITY = re.compile(r"(?:CPU|NUMA)\s*Aff")
_MAX_DEVICES = 512
#: Terminal colours (also with the escape character lost, or as `^[`), Markdown's bars, no-break spaces, and
#: tags of web pages.
_COLOUR = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]|(?:\^\[|\\(?:e|033|x1[bB]|u001[bB])|\u241b)?\[[0-9;]*m|\||\u00a0"
    r"|</?[A-Za-z][^<>]{0,300}>"
)
#: Two columns of a header with commas or semicolons between cells, as spreadsheets save them.
_SEPARATED = re.compile(r"\bGPU\d+\s*([,;])\s*\w+\d+\s*\1")
NVLINK = re.compile(r"^NV([1-9]\d{0,2})$")
#: {cell of earlier drivers: current name}.
_EARLIER_CELLS = {"SOC": "SYS"}
#: Header line, which may follow quote marks of a mail or a host name that a launcher puts before each line.
#: In other lines a cell follows the first GPU.
_HEADER = re.compile(rf"(.{{0,80}}?)\bGPU\d+(?!\s+(?:{_CELL})(?:\s|$))(\s|CPU|$)")
#: `_GLUED_HEADER`: header without spaces between columns, as copies of pages without tabs have it.
#: `_GLUED_ROW`: row of such a matrix: name, cells, and affinities. `_NEXT_CELL`: next one of the cells.
_GLUED_HEADER = re.compile(r"\s*GPU\d+(?:GPU|NIC|mlx\d+_)\d")
_GLUED_ROW = re.compile(rf"\s*((?:GPU|NIC|mlx\d+_)\d+)((?:\s*(?:{_CELL}))+)(.*)")
_NEXT_CELL = re.compile(_CELL)
_GLUED_COLUMNS = re.compile(r"(?<=\d)(?=(?:GPU|NIC|mlx\d+_)\d|CPU Affinity)")
#: Line of drivers that leave NICs out of a wide matrix: number of NICs, and of those that it shows.
_NICS_SHOWN = re.compile(r"(\d{1,6}) NICs found in the topology, only displaying (\d{1,6})\b")
#: Row of a device: its name, then a cell. `_NAME`: name of a device, in the legend.
_OTHER_ROW = re.compile(rf"([a-zA-Z]\w*\d)\s+(?:{_CELL})(?:\s|$)")
_NAME = re.compile(r"\s*(NIC\d+): (\S+)\s*$")
ONE_SWITCH, SWITCHES, ONE_CPU = {"PIX"}, {"PIX", "PXB"}, {"PIX", "PXB", "PHB", "NODE"}
_CELLS = "X, NV1, NV2, ..., PIX, PXB, PHB, NODE or SYS"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrix of ``nvidia-smi topo -m``, as parsed from text.

    - `devices`: Devices in the order of their columns.
    - `cells`: {(device, device): cell}.
    - `affinity`: {device: its CPU affinity}.
    - `coherent`: GPUs whose memory is a NUMA node of its own, as behind NVLink-C2C (GH200, GB200).
    - `names`: {device: its name by the legend}.
    - `assumed`: Descriptions of repairs to the text and of parts of it that are ignored.
    """

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    affinity: dict[str, str]
    coherent: frozenset[str]
    names: dict[str, str]
    assumed: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs in the order of their columns."""
        return tuple(device for device in self.devices if re.fullmatch(r"GPU\d+", device))

    def groups(self, kinds: set[str]) -> list[set[str]]:
        """Sets of devices connected by cells of `kinds`, directly or via other devices, in column order.

        With `ONE_CPU`, an equal CPU affinity also connects two devices. One affinity of all devices does not,
        if cells show several CPUs: virtual machines and containers state it.
        """
        import networkx

        near = graph_of((pair for pair, cell in self.cells.items() if cell in kinds), self.devices)
        if kinds == ONE_CPU and (len({*self.affinity.values()}) > 1 or "SYS" not in self.cells.values()):
            near.add_edges_from(
                (a, b) for (a, cpus), (b, other) in permutations(self.affinity.items(), 2) if cpus == other
            )
        groups = networkx.connected_components(near)
        return sorted(groups, key=lambda group: min(map(self.devices.index, group)))

    def hidden(self) -> list[str]:
        """GPUs joined by NVLinks that may also share a PCIe switch, which NVLink cells do not show."""
        pairs = (pair for pair in combinations(self.gpus, 2) if self._may_share(*pair))
        return list(dict.fromkeys(gpu for pair in pairs for gpu in pair))

    def _may_share(self, a: str, b: str) -> bool:
        if not NVLINK.match(self.cells[a, b]) or self.affinity.get(a) != self.affinity.get(b):
            return False
        for other in self.devices:
            cells = [self.cells.get((gpu, other), "") for gpu in (a, b)]
            if other in (a, b) or any(map(NVLINK.match, cells)):
                continue
            if "PIX" in cells or any(cells.count(kind) == 1 for kind in ("PXB", "SYS")):
                return False
        return True


def read_matrix(text: str, where: str) -> Matrix:
    """Read the first topology matrix in a text; `FormatError` if there is none, or it is incomplete."""
    if (separated := _SEPARATED.search(text)) is not None:
        text = text.replace(separated[1], "\t")
    given = [_COLOUR.sub(" ", line) for line in text.splitlines()]
    is_glued = any(map(_GLUED_HEADER.match, given))
    given = [_spaced(line) for line in given] if is_glued else given
    marked = _unwrapped(given)
    headers = _headers(marked, where)
    start, first = headers[0]
    lines = _of_first(marked, first[1].strip(), [i for i, _ in headers[1:2]])
    devices = _devices(lines[start], f"{where}: line {start + 1}")
    repairs: list[str] = []
    rows = _rows(lines, start, devices, repairs, where)
    cells = {(a, b): cell for a, words in rows.items() for b, cell in zip(devices, words, strict=False)}
    without_column = [a for a in rows if a not in devices]
    cells |= {(b, a): cells[a, b] for a in without_column for b in devices}
    affinity, coherent = _affinities(rows, len(devices), has_ids="GPU NUMA ID" in lines[start])
    lacking = [a for a in devices if a not in rows]
    for a in lacking:
        if re.fullmatch(r"GPU\d+", a):
            said = f"found no row of {a}; expected one for every GPU; save it whole"
            raise FormatError(said, where=f"{where}: line {start + 1}")
        cells |= {(a, b): cells[b, a] for b in rows}
    devices = (*devices, *without_column)
    legend = {m[1]: m[2][:60] for m in map(_NAME.match, lines) if m}
    assumed = _left_out(text, legend, devices)
    if len(headers) > 1:
        differ = ", which differ," if _others_differ(marked, headers, cells, where) else ""
        assumed.append(f"the first of the file's {len(headers)} matrices{differ} is used for every node")
    if is_glued:
        assumed.append("cells without spaces between them are separated, and columns on NUMA are not read")
    if marked != given:
        assumed.append("lines of the matrix that were broken into several are joined")
    if repairs:
        assumed.append(f"joined words are separated: {first_of(repairs, 4)}")
    for part, of in (("rows", lacking), ("columns", without_column)):
        if of:
            assumed.append(f"no {part} of {first_of(of, 4)}: which NICs are close to each other is unknown")
    names = {device: name for device, name in legend.items() if device in devices}
    return Matrix(devices, cells, affinity, coherent, names, tuple(assumed))


def _spaced(line: str) -> str:
    """Header or row of a matrix without spaces, with spaces between its columns; other lines as they are.

    A last cell such as NV12 stays joined to an affinity such as 0-31, for `_unglued`.
    """
    if _GLUED_HEADER.match(line):
        return _GLUED_COLUMNS.sub(" ", line)
    row = _GLUED_ROW.fullmatch(line)
    if row is None:
        return line
    cells, after = _NEXT_CELL.findall(row[2]), row[3].strip()
    is_within = after.startswith(("-", ",")) and cells[-1][-1].isdigit()
    return " ".join(
        [row[1], *cells[: -1 if is_within else None], *[cells[-1] + after if is_within else after]]
    )


def _headers(lines: list[str], where: str) -> list[tuple[int, re.Match[str]]]:
    """(index of the line, match) of the header of each matrix; `FormatError` if there is none.

    Old drivers print no affinities. If any header line has them, a line without them is not a header.
    """
    found = [(i, match) for i, line in enumerate(lines) if (match := _HEADER.match(line))]
    headers = [(i, match) for i, match in found if "CPU Affinity" in lines[i]]
    headers = headers or [each for each in found if not each[1][1].strip()][:1]
    if not headers:
        said = "found no header with GPU columns; expected what `nvidia-smi topo -m` prints; save it whole"
        raise FormatError(said, where=where)
    return headers


def _devices(header: str, where: str) -> tuple[str, ...]:
    """Devices of the columns; `FormatError` if there are too many, or two of one name."""
    words = _GLUED_COLUMNS.sub(" ", header).split()
    ends = [words.index(word) for word in ("CPU", "NUMA") if word in words]
    devices = tuple(words[: min(ends, default=len(words))])
    if len(set(devices)) < len(devices) or len(devices) > _MAX_DEVICES:
        raise FormatError(
            f"found {len(devices)} columns, {len(set(devices))} of them different; expected at most "
            f"{_MAX_DEVICES} different devices; save the output again",
            where=where,
        )
    odd = next((each for each in devices if re.match(r"GPU(?!\d+$)", each)), None)
    if odd is not None:
        raise FormatError(f"found a column {quoted(odd)}; expected GPU0, GPU1, ...; correct it", where=where)
    return devices


def _affinities(
    rows: Mapping[str, list[str]], num_devices: int, *, has_ids: bool
) -> tuple[dict[str, str], frozenset[str]]:
    """({GPU: its CPU affinity}, GPUs with a NUMA id of their own).

    - `has_ids`: True if the last column has the NUMA id of the GPU, after CPU affinity and NUMA affinity.
    """
    affinity: dict[str, str] = {}
    coherent = set()
    for gpu in (each for each in rows if each.startswith("GPU")):
        after = rows[gpu][num_devices:]
        # Virtual machines report the affinity "N/A", which names no CPUs.
        affinity |= {gpu: cpus for cpus in after[:1] if cpus[0].isdigit()}
        if has_ids and len(after) == 3 and after[2].isdigit():  # N/A on most machines
            coherent.add(gpu)
    return affinity, frozenset(coherent)


def _others_differ(
    lines: list[str],
    headers: list[tuple[int, re.Match[str]]],
    cells: Mapping[tuple[str, str], str],
    where: str,
) -> bool:
    """True if a matrix after the first has other devices or cells; one that is incomplete is skipped.

    - `lines`: Lines of the text, with the host's name before each if a launcher put it there.
    """
    by_mark = defaultdict(list)
    for line in lines:
        by_mark[line.split(maxsplit=1)[0] if line.strip() else ""].append(line)
    marks = [match[1].strip() for _, match in headers]
    ends = [*(i for i, _ in headers[2:]), len(lines)]
    for (start, _), mark, end in zip(headers[1:], marks[1:], ends, strict=True):
        of_host = by_mark[mark] if mark and mark != marks[0] else lines[start:end]
        with suppress(FormatError):
            if read_matrix("\n".join(of_host), where).cells != cells:
                return True
    return False


def _left_out(text: str, legend: Iterable[str], devices: Collection[str]) -> list[str]:
    """Assumption on NICs without a column, by the driver's line or the legend; empty if there are none."""
    cut = _NICS_SHOWN.search(text)
    if cut is not None:
        every, num = int(cut[1]), int(cut[1]) - int(cut[2])
        what = f"{num} of {every} NICs are not in the matrix, as the driver cuts it"
        return [f"{what}; name those in use (nics=)"]
    unlisted = [name for name in legend if name not in devices]
    said = f"{first_of(unlisted, 4)} of the legend are left out, as they have no column"
    return [said] if unlisted else []


def _rows(
    lines: list[str], start: int, devices: tuple[str, ...], repairs: list[str], where: str
) -> dict[str, list[str]]:
    """{device: words of its row after the name: a cell for each column, and affinities}.

    NICs may have a row without a column, below all others, if the row has a cell for every column.

    Raises `FormatError` for a row with unknown cells or too few, and for other rows of devices without a
    column.

    - `repairs`: List to which descriptions of repaired words are appended.
    """
    found: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words, other = line.split(), _OTHER_ROW.match(line)
        is_nic = other is not None and not re.match(r"[CG]PU\d", other[1]) and len(words) == len(devices) + 1
        if words and (words[0] in devices or is_nic):
            found.setdefault(words[0], (number, words))
        elif other is not None:
            said = f"found a row of {other[1][:40]}, which has no column; expected one for every device"
            raise FormatError(f"{said}; save the output whole", where=f"{where}: line {number}")
    last = _unglued(found[devices[-1]][1], devices, {}, []) if devices and devices[-1] in found else []
    mirror = dict(zip(devices, last[1:], strict=False))
    rows = {}
    for device, (number, words) in found.items():
        _, *given = _unglued(words, devices, mirror, repairs)
        row = [_EARLIER_CELLS.get(cell, cell) for cell in given[: len(devices)]]
        _check_row(device, row, devices, f"{where}: line {number}")
        rows[device] = row + given[len(devices) :]
    for device, (number, _) in found.items():
        _check_symmetry(device, rows, devices, f"{where}: line {number}")
    return rows


def _check_symmetry(device: str, rows: Mapping[str, list[str]], devices: tuple[str, ...], where: str) -> None:
    """Raise `FormatError` if a cell of a device's row differs from that of the opposite direction."""
    column = devices.index(device) if device in devices else 0
    for other, cell in zip(devices[:column], rows[device], strict=False):
        if other in rows and rows[other][column] != cell:
            said = f"found {rows[other][column]} from {other[:40]} to {device[:40]} and {cell} back"
            raise FormatError(f"{said}; expected the same; save the output again", where=where)


def _check_row(device: str, row: list[str], devices: tuple[str, ...], where: str) -> None:
    """Raise `FormatError` if a row is too short or has an unknown cell."""
    if len(row) < len(devices):
        raise FormatError(
            f"found {len(row)} cells of {device[:40]}; expected {len(devices)}; save the output whole",
            where=where,
        )
    for other, cell in zip(devices, row, strict=True):
        known = cell in {"SYS", *ONE_CPU} or NVLINK.match(cell)
        if (cell != "X") if other == device else not known:
            raise FormatError(
                f"found {quoted(cell)} from {device[:40]} to {other[:40]}; expected {_CELLS}; save the "
                "output again, or describe the links of another vendor in a topology file with [node]",
                where=where,
            )


def _unwrapped(lines: list[str]) -> list[str]:
    """Lines of a matrix whose long lines a terminal or a mail broke, each made whole, above empty lines."""
    words = [line.strip() for line in lines]
    first = next((i for i, line in enumerate(words) if _FIRST_ROW.match(line)), None)
    if first is None:
        return lines
    # The header begins with the first GPU; a title may stand above it.
    begins = re.compile(rf"{words[first].split()[0]}(?!\d)")
    above = range(first - 1, -1, -1)
    start = next((i for i in above if begins.match(words[i]) or not _is_head(words[i])), first)
    if first - start < 2 or not begins.match(words[start]):
        return lines
    end = next((i for i in range(first, len(lines)) if not words[i]), len(lines))
    width = max(map(len, lines[start:end]))
    whole = _joined_parts(lines[start:first], width)
    devices = re.findall(r"[a-zA-Z]\w*?\d+(?=\s|$|GPU|NIC)", _AFFINITY.split(whole)[0])
    blocks: list[tuple[int, list[str]]] = [(start, lines[start:first])]
    for number in range(first, len(lines)):
        row = _ROW.match(words[number])
        if row is not None and row[1] in devices:
            blocks.append((number, [lines[number]]))
        elif len(blocks) > 1 and _REST.fullmatch(words[number] or "."):
            blocks[-1][1].append(lines[number])
        elif words[number]:
            break
    made = list(lines)
    for number, parts in blocks:
        made[number : number + len(parts)] = [_joined_parts(parts, width), *[""] * (len(parts) - 1)]
    return made


def _is_head(line: str) -> bool:
    """True for a line of words of a header; one word after another, as a single pattern takes too long."""
    return bool(line) and all(map(_HEAD_WORD.fullmatch, line.split()))


def _joined_parts(parts: list[str], width: int) -> str:
    """Join the parts of a line that a terminal or mail has wrapped at `width` characters.

    A part of the full width may end within a word, but no word has a letter after a digit.
    """
    line = last = ""
    for part in parts:
        is_within = not (line[-1:].isdigit() and part[:1].isalpha())
        line += part if len(last) == width and is_within else f" {part}"
        last = part
    return line


def _of_first(lines: list[str], prefix: str, others: list[int]) -> list[str]:
    """Lines of the first matrix, without prefixes such as host names; other lines are empty or left out.

    - `prefix`: Text before the columns of the header, such as a host that a launcher puts before each line.
    - `others`: Index of the second header; empty if there is none.
    """
    lines = [line.strip() for line in lines]
    if others and prefix and not lines[others[0]].startswith(prefix):
        # A launcher may mix the lines of several hosts: keep the lines of the host of the first header.
        own = [line.removeprefix(prefix).strip() if line.startswith(prefix) else "" for line in lines]
        gpus = re.findall(r"\bGPU\d+", next(filter(None, own)))
        if set(gpus) <= {line.split()[0] for line in own if line.strip()}:
            return own
    # If the header begins with a line number or timestamp, other lines may begin with different ones.
    form = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
    begins = [(line, form.match(line)) for line in lines[: others[0] if others else None]]
    # A title, such as the opening quote of a string, is before the header alone, or ends the text as well.
    is_title = sum(match is not None and match.end() < len(line) for line, match in begins) == 1
    return [line[match.end() :].strip() if match else line * is_title for line, match in begins]


def _unglued(
    words: list[str], devices: tuple[str, ...], mirror: Mapping[str, str], repairs: list[str]
) -> list[str]:
    """Words of a row, after splitting cells that have no space between them.

    The last cell may be joined to the affinity. NV120-31 may be NV12 and 0-31, or NV1 and 20-31. The row of
    the last device decides: it has the same cell, for the opposite direction.

    - `mirror` (mapping of str to str): {device: its cell in the row of the last device}.
    - `repairs`: List to which a description of each split word is appended.
    """
    split: list[str] = []
    for word in words[1:]:
        parts = [word]
        if len(split) < len(devices) and _GLUED.fullmatch(word):
            parts = re.findall(_CELL, word)
        elif len(split) == len(devices) - 1 and (glued := _GLUED_AFFINITY.fullmatch(word)):
            cell = mirror.get(words[0], glued[1])
            # Do not split NV12 into NV1 and affinity 2: it may be a whole cell, in conflict with its mirror.
            if word.startswith(cell) and not re.fullmatch(r"\d*", word.removeprefix(cell)):
                parts = [cell, word.removeprefix(cell)]
        if len(parts) > 1:
            repairs.append(f"{quoted(word)} in the row of {words[0]} is {' and '.join(parts)}")
        split += parts
    return [words[0], *split]
