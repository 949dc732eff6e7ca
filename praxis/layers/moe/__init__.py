# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-experts routing and expert computation, as functions of arrays."""
