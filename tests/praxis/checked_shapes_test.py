# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Shapes of layers are checked where layers are tested."""

from __future__ import annotations

import jax.numpy as jnp
import jaxtyping
import pytest

from praxis.layers import linears


def test_layers_are_among_what_is_checked():
  with pytest.raises(jaxtyping.TypeCheckError, match='project_last_dim'):
    linears.project_last_dim(jnp.ones((2, 3)), jnp.ones(3))
