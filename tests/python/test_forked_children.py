# SPDX-License-Identifier: Apache-2.0
"""A forked child of a rank's process ends like any other, and leaves its parent's engine alone."""

import subprocess
import sys

from harness import ToyEngine
from kvferry.vllm import worker_side
from scenarios import PROMPTS, Make, again, leave_to_the_tier

# The child ends as a Python program does: exit functions and finalizers run, and modules are torn down.
_FORKS = """
import ctypes, os, sys
from kvferry import _core
memory = ctypes.create_string_buffer(4 << 16)
engine = _core.WorkerEngine(
    backend="host", rank=0, world_size=1, num_blocks=4, num_chunks=4, slots_per_chunk=[1], staging_bytes=1 << 20,
    fragments=[[(ctypes.addressof(memory), 1 << 16, 1 << 16)]], max_in_flight_bytes=1 << 20, transfer_timeout_s=5.0,
)
child = os.fork()
if child == 0:
    sys.exit(7)
print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
engine.close()
"""


def test_a_forked_child_ends_and_its_parent_goes_on() -> None:
    result = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "the child ended with 7\n"


def test_a_finalizer_that_a_child_has_inherited_closes_nothing(make: Make) -> None:
    engine: ToyEngine = make()
    expected = engine.generate(PROMPTS)
    rank = engine.workers[0].connector.worker_side
    worker_side._end(-1, rank.engine, {})
    leave_to_the_tier(engine)
    assert list(engine.generate(again(" again")).values()) == list(expected.values())
    assert sum(engine.external_hit_tokens.values()) > 0
