# SPDX-License-Identifier: Apache-2.0
"""Analyses of compiled HLO: collectives, bytes accessed, kernel time."""
