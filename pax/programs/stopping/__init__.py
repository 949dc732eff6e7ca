# SPDX-License-Identifier: Apache-2.0
"""Requests to stop a job or to save it, which its processes agree on."""
