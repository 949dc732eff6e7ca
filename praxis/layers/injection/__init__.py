# SPDX-License-Identifier: Apache-2.0
"""Layers that take the place of others through templates."""
