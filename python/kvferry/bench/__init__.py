# SPDX-License-Identifier: Apache-2.0
"""kvferry-bench; its reports and those of kvferry-lab, and pictures of them."""
