# SPDX-License-Identifier: Apache-2.0
"""Summaries of a job: scalars, media, speed, utilization, goodput."""

from __future__ import annotations

from pax.summaries import goodput as goodput
from pax.summaries import media as media
from pax.summaries import mfu as mfu
from pax.summaries import plots as plots
from pax.summaries import tags as tags
from pax.summaries.model_text import PROVENANCE_FILE as PROVENANCE_FILE
from pax.summaries.model_text import write_description as write_description
from pax.summaries.model_text import write_provenance as write_provenance
from pax.summaries.profiling import StepProfiler as StepProfiler
from pax.summaries.progress import NoopStatusLog as NoopStatusLog
from pax.summaries.progress import Progress as Progress
from pax.summaries.progress import StatusLog as StatusLog
from pax.summaries.progress import batch_count as batch_count
from pax.summaries.throughput import Rate as Rate
from pax.summaries.throughput import Throughput as Throughput
from pax.summaries.writer import NoopWriter as NoopWriter
from pax.summaries.writer import Writer as Writer
from pax.summaries.writer import WriterOptions as WriterOptions
from pax.summaries.writer import create_writer as create_writer
