# SPDX-License-Identifier: Apache-2.0
"""Formats of checkpoints: their files, and the arrays in them."""
