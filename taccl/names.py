"""Names as people type them: without regard to case and dashes, and the nearest one to a typing error."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "matching"]


def matching(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word spells: ``All_Gather`` is ``allgather``; None where there is none."""
    return {_plain(name): name for name in known}.get(_plain(word))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'allgather'?"``, or nothing where no name is near."""
    by_plain = {_plain(name): name for name in known}
    near = get_close_matches(_plain(word), by_plain, n=1, cutoff=0.5)
    return f"; did you mean {by_plain[near[0]]!r}?" if near else ""


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
