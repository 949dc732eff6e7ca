# SPDX-License-Identifier: Apache-2.0
"""Layers that replace others through templates."""
