"""For which cell an interrupt is, when the host's words and its signals come by ways of their own."""
from __future__ import annotations

from collections.abc import Callable


class Interrupts:
    """The host names a cell, then sends a signal, and sends no other cell before both.

    A link that others pass on may still bring the one or the other first. Signals that wait become
    one, and anybody may send them.
    """

    def __init__(self) -> None:
        self.cell = 0  # the newest that has begun
        self.running = False
        self.early = False  # it was interrupted before its own code could be
        self._named = 0  # the newest cell that the host has named since the last signal
        self._obeyed = False  # and its signal is still to come for what was done
        self._unnamed = False  # the cell was interrupted, and the host has not named it yet
        self._unwanted = 0  # a cell that was named before it began
        self._stray = False  # a signal came between cells, and the host has named none

    def begin(self, cell: int, listen: Callable[[], object]) -> None:
        """listen: waits a little for what the host says, and takes it."""
        # In this order: a signal may come at any line, and is this cell's from here on.
        self.running = True
        self.cell = cell
        self._unnamed = False
        if self._named != cell:
            self._named = 0
        if self._unwanted == cell:
            self.early, self._obeyed = True, self._named == cell
        elif self._stray:
            listen()
            self._stray = False

    def end(self) -> None:
        self.running = self.early = False

    def name(self, cell: int) -> None:
        """The host has named that cell."""
        if self._stray:
            self.early = self.early or (self.running and cell == self.cell)
        elif not self._unnamed or cell != self.cell:
            self._named, self._obeyed = cell, False
        self._stray = self._unnamed = False
        if cell > self.cell:
            self._unwanted = cell

    def is_meant(self, repeated: bool) -> bool:
        """Whether a signal is for the cell that runs. repeated: it is one of ours, but maybe not alone."""
        named, self._named = self._named, 0
        obeyed, self._obeyed = self._obeyed, False
        if not self.running:
            self._stray = not named and not repeated
            return False
        if named == self.cell:
            return not obeyed
        self._unnamed = not repeated  # of the host, whose word is on its way, or of anybody else
        return self._unnamed
