"""Log of consecutive steps as stages, for work that is no `Search`: plans and implicit synthesis."""

from __future__ import annotations

import time
from dataclasses import replace

from taccl.synthesis.result import Stage, Stages


class StageLog:
    """Log of steps that follow one another; each begins when the one before ends, so that they add up."""

    def __init__(self) -> None:
        self._began_s = self._since_s = time.monotonic()
        self._rows: list[Stage] = []

    @property
    def seconds(self) -> float:
        """Seconds since the log began."""
        return time.monotonic() - self._began_s

    @property
    def stages(self) -> Stages:
        """The steps that have ended."""
        return Stages(self._rows)

    def end(
        self,
        name: str,
        *,
        status: str = "done",
        finish_us: float | None = None,
        message: str = "",
        within: Stages = Stages(),
    ) -> None:
        """Add a step, which lasted from the end of the one before until now.

        - `within`: Stages of a search in this step. They are added first, under names that begin with the
          step's; the seconds of the step exclude them.
        """
        began_s, now_s = self._since_s - self._began_s, time.monotonic()
        seconds = now_s - self._since_s - sum(each.seconds for each in within)
        self._rows += [
            replace(each, name=f"{name}: {each.name}", began_s=began_s + each.began_s) for each in within
        ]
        self._rows.append(Stage(name, "taccl", status, seconds, finish_us, None, message, began_s=began_s))
        self._since_s = now_s
