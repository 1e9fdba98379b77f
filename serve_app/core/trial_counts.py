"""What one Router sees of the release in force and the one that is tried, until it has told its region."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from serve_app.core.reports import RouterReport
from serve_app.core.trial import MOST_BROKEN, ReleaseCount, Tried, added


@dataclass(slots=True)
class TrialCounts:
    """Counts are told once; users that this Router moved back each time, for a region that begins anew."""

    revision: str = ""
    _counts: list[ReleaseCount] = field(default_factory=list)
    _broken: dict[int, None] = field(default_factory=dict)

    def begin(self, revision: str) -> None:
        """Another release is tried from now on, or none."""
        if revision != self.revision:
            self.revision, self._counts, self._broken = revision, [], {}

    def add(self, revision: str, count: ReleaseCount) -> None:
        """One request. Of another release than the one that is tried now it says nothing."""
        if revision == self.revision:
            self._counts = list(added([*self._counts, count]).values())

    def broke(self, revision: str, place: int) -> None:
        """A user stays on the release in force, as nobody could serve the tried one."""
        if revision == self.revision:
            self._broken[place] = None
            for old in list(self._broken)[:-MOST_BROKEN]:
                del self._broken[old]

    def seen_by(self, tried: Tried) -> Tried:
        """The tried release with the users that this Router moved back and its region may not know yet."""
        return replace(tried, broken=tried.broken | self._broken.keys()) if self._broken else tried

    def on(self, report: RouterReport) -> RouterReport:
        """The report with what is counted since the last one."""
        if not self.revision:
            return report
        counts, self._counts = tuple(self._counts), []
        return replace(report, tried=self.revision, counts=counts, broken=tuple(self._broken))
