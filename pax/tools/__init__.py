# SPDX-License-Identifier: Apache-2.0
"""Tools for experiments and jobs: `pax TOOL`, or `python -m pax.tools.TOOL`."""
