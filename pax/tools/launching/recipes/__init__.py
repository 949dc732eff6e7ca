# SPDX-License-Identifier: Apache-2.0
"""Files of `pax launch --print`: one module and template per scheduler."""
