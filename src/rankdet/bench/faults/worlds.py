"""Several processes that train together, without torchrun: children with its variables."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Child, Ended, Server


def start_world(
    server: Server,
    size: int,
    *arguments: str,
    patches: Sequence[Patch] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Child]:
    """So many processes of `rankdet` with these arguments, that find each other."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",  # the name of this machine may lead nowhere
        **(environment or {}),
    }
    return [
        server.rankdet(
            *arguments,
            patches=patches,
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]


def all_ended(world: Sequence[Child], seconds: float) -> list[Ended]:
    """How the processes ended; RankdetError, and none is left, if one of them does not."""
    try:
        return [child.wait(seconds) for child in world]
    finally:
        for child in world:
            child.kill()
