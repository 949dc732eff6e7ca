# SPDX-License-Identifier: Apache-2.0
"""The settings and weights of models, by their families."""
