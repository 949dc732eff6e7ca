# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in shells: scripts, and the words they offer."""
