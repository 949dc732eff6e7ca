# SPDX-License-Identifier: Apache-2.0
"""Pruning of weights."""
