# SPDX-License-Identifier: Apache-2.0
"""Praxis: the layer library of Pax. Import its modules by their full path."""

# bazel: data=py.typed
