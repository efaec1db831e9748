"""Runs a program once per rank, as torchrun would, on the hosts of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thinwire.errors import ConfigError
from thinwire.lab.crew import Crew
from thinwire.lab.network import Network
from thinwire.lab.port import held_port
from thinwire.lab.rank_process import LineCallback, rank_environment

__all__ = ["launch"]


def launch(
    network: Network,
    program: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    on_line: LineCallback | None = None,
    on_error_line: LineCallback | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run `program` once per rank, on the rank's host, and return when all have ended with code 0.

    Args:
        network: the hosts; see `open_network`.
        program: the program and its arguments, the same for every rank. No shell reads it.
        environment: added to this process's environment, below torchrun's variables (RANK,
            WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR,
            MASTER_PORT) and GLOO_SOCKET_IFNAME.
        on_line: called with (rank, line) for each line on a rank's standard output. What it raises
            ends the ranks and is raised here.
        on_error_line: the same for the standard error.
        timeout_s: how long all ranks may take together.

    Ranks never outlive this call: at its end, and when it is interrupted, all that is left gets
    SIGTERM and two seconds later SIGKILL. When this process is killed, the kernel kills the ranks
    (`enter`), and `guard` what they have started. No signal handler is installed here, so SIGTERM
    and Ctrl-C mean what they mean to the caller's program.

    Raises:
        ConfigError: there is no program, or the timeout is not above zero.
        RankError: a rank failed, and then the others were ended; or ranks still ran at the timeout.
            The message names the rank, how it ended and its last words; a note has the end of its
            standard error.
    """
    if not program:
        raise ConfigError("there is no program to launch; give its name and arguments")
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"a timeout of {timeout_s} s ends before it begins; give more than 0")
    with held_port(network) as port, Crew(network, on_line, on_error_line) as crew:
        for rank in range(network.layout.world_size):
            crew.start(rank, program, rank_environment(network, rank, port, environment or {}))
        crew.watch(timeout_s)
