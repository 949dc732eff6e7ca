# SPDX-License-Identifier: Apache-2.0
"""Configurations of experiments: normalized, and written as Python code.

`paxml.tools.fiddle` is the path in paxml. A folder `pax/tools/fiddle` would
hide Fiddle itself from programs that run in `pax/tools`.
"""
