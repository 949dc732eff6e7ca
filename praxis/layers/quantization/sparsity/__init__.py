# SPDX-License-Identifier: Apache-2.0
"""Weights of which some are pruned."""
