# SPDX-License-Identifier: Apache-2.0
"""What to search, how, and for which reward: declared, never run, here."""
