# SPDX-License-Identifier: Apache-2.0
"""Runs an experiment: options in, exit code out."""
