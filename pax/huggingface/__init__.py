# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face: their configurations and weights in Pax, and back."""
