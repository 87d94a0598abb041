"""Pictures of schedules, topologies, comparisons and searches, made with matplotlib.

Each function takes an object to draw and optional axes to draw on, and returns the axes. `save` writes a
picture to a file. The colours of Okabe and Ito, and cividis, are distinct under any colour vision. If there
is too much for one picture, a part is drawn, and the picture says so.
"""

from __future__ import annotations

from taccl.plot.comparison import backends, comparison, performance_profile, progress
from taccl.plot.gantt import dimensions, gantt, step
from taccl.plot.sizes import bandwidth, bandwidths, diagnosis, measured
from taccl.plot.style import render, save
from taccl.plot.topology import topology

__all__ = [
    "backends", "bandwidth", "bandwidths", "comparison", "diagnosis", "dimensions", "gantt",
    "measured", "performance_profile", "progress", "render", "save", "step", "topology",
]  # fmt: skip
