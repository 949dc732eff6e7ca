# SPDX-License-Identifier: Apache-2.0
"""Re-exports the setup of JAX under paxml's path."""

from __future__ import annotations

from pax.paxml_api.setup_jax import JaxDistributedOptions, setup_jax

__all__ = ['JaxDistributedOptions', 'setup_jax']
