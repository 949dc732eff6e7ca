# SPDX-License-Identifier: Apache-2.0
"""Analyses of a traced train step: fusion, liveness, implicit all-gathers."""
