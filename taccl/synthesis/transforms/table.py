"""The table of transforms: all that a search makes of a problem, from the outside in."""

from __future__ import annotations

from typing import Any

from taccl.synthesis.transforms.fused import SingleChunk
from taccl.synthesis.transforms.halves import ContributionsApart, Phases
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.synthesis.transforms.symmetry import Symmetry
from taccl.synthesis.transforms.transform import Transform

#: Those of the whole problem, which `taccl.synthesize` applies and inverts; and those that proposers do.
OUTER: tuple[type[Transform[Any, Any]], ...] = (ReleaseDates, PlainLinks, OtherRoots)
INNER: tuple[type[Transform[Any, Any]], ...] = (SingleChunk, Phases, ContributionsApart, Symmetry)
TRANSFORMS = OUTER + INNER
