# SPDX-License-Identifier: Apache-2.0
"""The report: memory, roofline and advice, as text, HTML, JSON and Markdown."""
