# SPDX-License-Identifier: Apache-2.0
"""Upstream's path to `praxis.optimizers.prefix_vectorization`."""

from __future__ import annotations

from praxis.optimizers.prefix_vectorization import NO_PREFIX as NO_PREFIX
from praxis.optimizers.prefix_vectorization import (
  get_transformations_with_vectorized_repeat_prefix as get_transformations_with_vectorized_repeat_prefix,
)
from praxis.optimizers.prefix_vectorization import (
  has_no_prefix as has_no_prefix,
)
