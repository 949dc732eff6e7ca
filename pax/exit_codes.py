# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the programs of Pax."""

from __future__ import annotations

DONE = 0
# Failed; the reason is on stderr.
ERROR = 1
# --mode=aot: the step does not fit into memory.
DOES_NOT_FIT = 2
# Loss or gradient were not finite in too many consecutive steps; the last
# checkpoint before them is kept.
DIVERGED = 3
# Stopped by a signal with the state saved: EX_TEMPFAIL, start it again.
PREEMPTED = 75
# Another process of the job ended or did not join: start all of them again.
PEER_LOST = 76
# No step was done within --hang_timeout_secs; the state is saved if the input
# caused the wait.
HANG = 124
# Plus the number of a signal: stopped at once, by a repeated signal.
SIGNAL_OFFSET = 128

# A new start would fail again; after any other code it continues the job.
PERMANENT = frozenset({ERROR, DOES_NOT_FIT, DIVERGED})
