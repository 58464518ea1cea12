# SPDX-License-Identifier: Apache-2.0
"""Faults that lives would meet and that are not mended yet: each switches the lives on that show it.

False: the lives that may meet it are skipped. Whoever mends a fault sets its switch to True in the same commit.
"""

# With policy "priority" and synchronous scheduling vLLM hashes a block and preempts its request in the same pass, with
# drafts or with several groups: it is never computed. A tier that stores it makes that last.
HASHED_AND_NEVER_COMPUTED_IS_MENDED = False
