"""The sockets of a process are found also when it may open no further file."""

from __future__ import annotations

import os
import resource
import socket

from semisilo.common.rpc.own_sockets import own_sockets


def test_sockets_are_found_and_files_are_not(tmp_path: object) -> None:
    with socket.socket() as one, open(os.devnull) as file:
        found = own_sockets()
        assert found[os.fstat(one.fileno()).st_ino] == [one.fileno()]
        assert os.fstat(file.fileno()).st_ino not in found
    assert one.fileno() not in {each for descriptors in own_sockets().values() for each in descriptors}


def test_they_are_found_when_no_descriptor_is_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as one:
        taken: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        try:
            while True:
                try:
                    taken.append(os.dup(0))
                except OSError:
                    break
            found = own_sockets()
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [one.fileno()] in found.values()
