# SPDX-License-Identifier: Apache-2.0
"""`vllm` in a process that was forked from one that has imported vLLM; it forks its engines, too.

python -m e2e.serve_process serve MODEL ...
"""

from __future__ import annotations

import logging

from vllm.entrypoints.cli.main import main

from .engine_changes import fork_processes, inspect_models_here

if __name__ == "__main__":
    # The process that this one was forked from logs warnings only.
    logging.getLogger("vllm").setLevel(logging.INFO)
    for handler in logging.getLogger("vllm").handlers:
        handler.setLevel(logging.INFO)
    fork_processes()
    inspect_models_here()
    main()
