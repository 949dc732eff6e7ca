# SPDX-License-Identifier: Apache-2.0
"""Evaluation of language models on tasks of lm-evaluation-harness."""
