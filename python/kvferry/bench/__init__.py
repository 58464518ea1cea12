# SPDX-License-Identifier: Apache-2.0
"""What kvferry-bench measured: its reports, and pictures of them."""
