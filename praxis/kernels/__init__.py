# SPDX-License-Identifier: Apache-2.0
"""C++ and CUDA kernels with their jnp reference implementations."""
