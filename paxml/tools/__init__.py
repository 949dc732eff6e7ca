# SPDX-License-Identifier: Apache-2.0
"""Re-exports the tools under paxml's path, which names some differently."""
