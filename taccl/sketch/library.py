"""Load sketches by shipped name or by path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked
from taccl._internal.names import did_you_mean
from taccl._internal.reading import parse, read_text, reads
from taccl.errors import SketchError

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch


def shipped_sketches() -> tuple[str, ...]:
    """Names of the sketches that come with taccl, e.g. ``"ndv2/sk1"``."""
    folder = _folder()
    if folder is None:
        return ()
    return tuple(sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml")))


@checked
@reads("sketch", "upstream sketch")
def load_sketch(name_or_path: str | os.PathLike[str]) -> Sketch:
    """Load a sketch by shipped name, or from a TOML or JSON file, including those of the original TACCL.

    Raises `FormatError` if the file cannot be parsed, and `SketchError` if it does not exist or a field is
    wrong.
    """
    from taccl.sketch.sketch import Sketch

    path, source = _find(name_or_path)
    data = parse(read_text(path), source=source)
    if "nnodes" in data:
        from taccl.sketch.upstream_files import sketch_from_file

        return sketch_from_file(data, source=str(path), name=path.stem)
    return Sketch.from_dict(data, source=source)


def _find(name_or_path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Path of the sketch file, and its name in messages."""
    path, shipped, folder = Path(name_or_path), shipped_sketches(), _folder()
    name = path.as_posix()
    if folder is not None and name in shipped and not os.path.isfile(path):
        return folder / f"{name}.toml", name
    if os.path.lexists(path) or path.suffix.lower() in (".toml", ".json"):
        return path, str(name_or_path)
    advice = did_you_mean(name[:100], shipped) or f"; shipped are {', '.join(shipped) or 'none'}"
    raise SketchError(f"found no such file and no shipped sketch of that name{advice}", where=str(path))


def _folder() -> Path | None:
    """Folder of the shipped sketches: inside the package, or next to it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    folders = (package / "_sketches", package.parent / "sketches")
    return next((folder for folder in folders if folder.is_dir()), None)
