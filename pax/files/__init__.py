# SPDX-License-Identifier: Apache-2.0
"""Files: local or in buckets, complete or absent, temporary or of a job."""
