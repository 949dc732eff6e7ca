# SPDX-License-Identifier: Apache-2.0
"""Layers whose variables stand in golden text; one module a room."""
