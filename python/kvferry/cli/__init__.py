# SPDX-License-Identifier: Apache-2.0
"""The program ``kvferry``: one module per command."""

from kvferry.cli.app import main

__all__ = ["main"]
