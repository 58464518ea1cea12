# SPDX-License-Identifier: Apache-2.0
"""The reports of kvferry-bench and kvferry-lab, and pictures of them."""
