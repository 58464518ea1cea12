# SPDX-License-Identifier: Apache-2.0
"""What ``kvferry doctor`` finds on a machine, and what would become of a configuration there."""
