# SPDX-License-Identifier: Apache-2.0
"""What kvferry-bench and kvferry-lab measured: their reports, and pictures of them."""
