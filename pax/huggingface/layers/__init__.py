# SPDX-License-Identifier: Apache-2.0
"""Layers of models: their Configs in Pax, and the layouts of their weights."""
