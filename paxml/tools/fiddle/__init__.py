# SPDX-License-Identifier: Apache-2.0
"""Re-exports `pax.tools.fiddler` under paxml's path, with a module per tool."""
