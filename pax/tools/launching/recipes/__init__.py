# SPDX-License-Identifier: Apache-2.0
"""What `pax launch --print` prints: a module and a template for each kind."""
