# SPDX-License-Identifier: Apache-2.0
"""Programs that look at experiments and jobs: `pax TOOL`, or -m pax.tools.X."""
