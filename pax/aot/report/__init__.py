# SPDX-License-Identifier: Apache-2.0
"""The report of an analysis: its figures, and their text, HTML and Markdown."""
