"""Processes that nobody has bound use memory of their own, which they have filled on CPU 0.

    unpinned.py SECONDS

Each of four processes prints a JSON line a second: its passes over its memory on each CPU, and its pages on
each node, at first and now. CPU and node have the same number.
"""

import ctypes
import json
import os
import sys
import time

PROCESSES, NODES, BYTES, PAGE = 4, 4, 16 << 20, 4096
MOVE_PAGES = 279
libc = ctypes.CDLL(None)


def pages_by_node(memory):
    """The pages on each node, by the kernel's word (move_pages(2) without targets)."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pages = range(-(-start // PAGE) * PAGE, start + len(memory) - PAGE, PAGE)
    addresses = (ctypes.c_void_p * len(pages))(*pages)
    homes = (ctypes.c_int * len(pages))()
    if libc.syscall(MOVE_PAGES, 0, ctypes.c_long(len(pages)), addresses, None, homes, 0):
        sys.exit("move_pages failed")
    return [sum(home == node for home in homes) for node in range(NODES)]


def work(seconds):
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    memory = bytearray(BYTES)
    memory[::PAGE] = b"x" * (BYTES // PAGE)
    os.sched_setaffinity(0, everywhere)
    first = pages_by_node(memory)
    begin = time.monotonic()
    for second in range(1, seconds + 1):
        passes = [0] * NODES
        while time.monotonic() < begin + second:
            at = sum(passes) % PAGE
            memory[at::PAGE] = memory[at::PAGE][::-1]
            passes[libc.sched_getcpu()] += 1
        line = {"second": second, "passes": passes, "first": first, "now": pages_by_node(memory)}
        os.write(1, (json.dumps(line) + "\n").encode())


for _ in range(PROCESSES):
    if os.fork() == 0:
        work(int(sys.argv[1]))
        os._exit(0)
for _ in range(PROCESSES):
    os.wait()
