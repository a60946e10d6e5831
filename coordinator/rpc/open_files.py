"""Room for a connection of every silo: each takes a file descriptor of the process, and shells give out 1024."""

from __future__ import annotations

import logging
import resource

__all__ = ["OWN_FILES", "allow_open_files"]

_LOG = logging.getLogger("semisilo.coordinator")
OWN_FILES = 200
"""Besides the silos' connections: libraries, ledger, the files of transfers, the page's readers. About 30 without the
last two."""


def allow_open_files(silos: int) -> int:
    """Raises this process's limit of open files as far as the system allows; warns where that is too few.

    Args:
        silos: how many may be connected at the same time.
    Returns: the limit; 0 where there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != hard:
        wanted = silos * 2 + OWN_FILES if hard == unlimited else hard  # some systems refuse to set none at all
        if soft != unlimited and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
            except (OSError, ValueError) as error:
                _LOG.debug("the limit of open files stays at %d: %s", soft, error)
    if soft == unlimited:
        return 0
    if soft < silos + OWN_FILES:
        _LOG.warning("only %d files may be open at a time, and %d silos take one each: some will not connect. Raise the"
                     " limit before `coordinator serve`, for example: ulimit -n %d (systemd: LimitNOFILE=%d).", soft,
                     silos, 2 * (silos + OWN_FILES), 2 * (silos + OWN_FILES))
    return soft
