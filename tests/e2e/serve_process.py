# SPDX-License-Identifier: Apache-2.0
"""`vllm` in a process that was forked from one that has imported vLLM; it forks its engines, too.

python -m e2e.serve_process serve MODEL ...
"""

from __future__ import annotations

from vllm.entrypoints.cli.main import main

from .engine_changes import fork_processes, inspect_models_here, read_logging_level

if __name__ == "__main__":
    read_logging_level()
    fork_processes()
    inspect_models_here()
    main()
