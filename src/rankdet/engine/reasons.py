"""Why a process of a training has ended: it leaves its reason where the processes have met.

The others notice by a collective that fails, which says no more than that. So they look here.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store  # not every torch has it

_SECONDS_FOR_REASONS = 3.0  # how long to wait for what a lost process may have left
_SECONDS_FOR_TWINS = 1.0  # how long to wait for process 0 to say the same
_POLL_SECONDS = 0.05
_LONGEST_REASON = 4000  # characters
_NOTHING = " "  # left by those that end because of others; a store does not take an empty text
_WITHOUT_A_WORD = ": it was killed, or its own message says why. Go on with --resume."


@dataclass(frozen=True)
class Reasons:
    """The reasons of all processes, seen from one of them."""

    store: Store
    rank: int
    world_size: int

    def leave(self, reason: str) -> None:
        """Say why this process ends; an empty reason: because others do."""
        if self._is_there():
            with suppress(RuntimeError, OSError):
                self.store.set(f"reason/{self.rank}", _shortened(reason) or _NOTHING)

    def of_others(self) -> str:
        """What another process has left, or else which ones are lost."""
        others = set(range(self.world_size)) - {self.rank}
        left = self._left_by(others, _SECONDS_FOR_REASONS)
        if left is None:  # what they have met in was in process 0
            return f"process 0 has ended{_WITHOUT_A_WORD}"
        for rank, reason in sorted(left.items()):
            if reason:
                return f"process {rank}: {reason}"
        missing = [str(rank) for rank in sorted(others - left.keys())]
        if not missing:
            return "the processes do not reach each other any more. Check the network, and resume."
        if len(missing) == 1:
            return f"process {missing[0]} has ended{_WITHOUT_A_WORD}"
        return f"processes {', '.join(missing)} have ended{_WITHOUT_A_WORD}"

    def is_said_by_first(self, reason: str) -> bool:
        """Whether process 0 ends for just this reason, so that it need not be said twice."""
        if self.rank == 0:
            return False
        left = self._left_by({0}, _SECONDS_FOR_TWINS) or {}
        return left.get(0) == _shortened(reason)

    def close(self) -> None:
        """Be done with all this. The process that keeps the reasons waits for the others a while.

        Not for long: those that are in the middle of a collective notice only by its end.
        """
        others = [f"closed/{rank}" for rank in range(1, self.world_size)]
        deadline = time.monotonic() + 2 * _SECONDS_FOR_TWINS  # they may have just begun to look
        if not self._is_there():
            return
        with suppress(RuntimeError, OSError):
            self.store.set(f"closed/{self.rank}", "1")
            while self._is_keeper and time.monotonic() < deadline and not self.store.check(others):
                time.sleep(_POLL_SECONDS)

    @property
    def _is_keeper(self) -> bool:
        """Whether the store lives in this process; else in torchrun, or in process 0."""
        return self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _is_there(self) -> bool:
        """Whether the store can be reached: else torch would write pages about that."""
        if self._is_keeper:
            return True
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            socket.create_connection(address, timeout=_SECONDS_FOR_TWINS).close()
        except OSError:
            return False
        return True

    def _left_by(self, ranks: set[int], seconds: float) -> dict[int, str] | None:
        """What these processes have left, once one has a reason or all have something.

        None if the store is gone.
        """
        left: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while self._is_there():
            try:
                for rank in ranks - left.keys():
                    if self.store.check([f"reason/{rank}"]):
                        left[rank] = self.store.get(f"reason/{rank}").decode(errors="replace")
            except (RuntimeError, OSError):
                return None
            if any(map(str.strip, left.values())) or left.keys() == ranks:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        else:
            return None
        return {rank: reason.strip() for rank, reason in left.items()}


def _shortened(reason: str) -> str:
    return reason[:_LONGEST_REASON].strip()
