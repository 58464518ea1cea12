# SPDX-License-Identifier: Apache-2.0
"""What ``kvferry doctor`` finds on a machine, and whether an engine there would accept a configuration."""
