# SPDX-License-Identifier: Apache-2.0
"""Curves of jobs: read, smoothed, drawn as a picture and as a page."""
