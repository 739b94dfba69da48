"""A ring from another thread is heard, once it is listened for or before."""

import os
import threading

import pytest
import trio

from stages.executor.bell import Bell


async def test_a_ring_from_another_thread_wakes_who_listens():
    bell = Bell()
    threading.Timer(0.01, bell.ring).start()
    with trio.fail_after(10):
        await bell.heard()
    bell.close()


async def test_rings_before_anybody_listens_are_heard_as_one():
    bell = Bell()
    bell.ring()
    bell.ring()
    await bell.heard()
    with pytest.raises(BlockingIOError):
        os.read(bell._read_fd, 8)
    bell.close()


async def test_closing_twice_closes_once():
    bell = Bell()
    fd = bell._read_fd
    bell.close()
    bell.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
