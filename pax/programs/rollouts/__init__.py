# SPDX-License-Identifier: Apache-2.0
"""Training on samples of the model."""
