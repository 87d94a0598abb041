"""Table of transforms of problems, outermost first."""

from __future__ import annotations

from typing import Any

from taccl.synthesis.transforms.fused import SingleChunk
from taccl.synthesis.transforms.halves import Phases, SeparateContributions
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.synthesis.transforms.symmetry import Symmetry
from taccl.synthesis.transforms.transform import Transform

#: Transforms of the whole problem, which `taccl.synthesize` applies and inverts.
OUTER: tuple[type[Transform[Any, Any]], ...] = (ReleaseDates, PlainLinks, OtherRoots)
#: Transforms that proposers apply and invert.
INNER: tuple[type[Transform[Any, Any]], ...] = (SingleChunk, Phases, SeparateContributions, Symmetry)
