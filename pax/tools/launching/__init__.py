# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes: here, over ssh, and as files for schedulers."""
