# SPDX-License-Identifier: Apache-2.0
"""Fast paths written in C++ and CUDA, each with its reference in jnp."""
