# SPDX-License-Identifier: Apache-2.0
"""Summaries, by the names that code written for paxml knows."""

from __future__ import annotations

from pax.summaries import clu_seqio, entries, handler, trees_text

AUDIO_SUMMARY_SAMPLE_RATE = entries.AUDIO_SUMMARY_SAMPLE_RATE
MAX_AUDIOS_PER_SUMMARY = entries.MAX_AUDIOS_PER_SUMMARY
MAX_IMAGES_PER_SUMMARY = entries.MAX_IMAGES_PER_SUMMARY
MAX_TEXTS_PER_SUMMARY = entries.MAX_TEXTS_PER_SUMMARY
SummaryHandler = handler.SummaryHandler
SummaryWriter = entries.SummaryWriter
aggregate_per_replica_summaries = clu_seqio.aggregate_per_replica_summaries
compute_and_write_clu_metric_summaries = (
  clu_seqio.compute_and_write_clu_metric_summaries
)
flatten_flax_summaries = entries.flatten_flax_summaries
flatten_summary_dict = entries.flatten_summary_dict
get_summary_display_name_from_key = entries.get_summary_display_name_from_key
get_summary_writer = entries.get_summary_writer
l2_mean = trees_text.l2_mean
pretty_format_iters = trees_text.pretty_format_iters
pretty_repr = trees_text.pretty_repr
pretty_repr_provenance = trees_text.pretty_repr_provenance
pretty_repr_shapes = trees_text.pretty_repr_shapes
should_cap_summary = entries.should_cap_summary
write_clu_metric_summaries = clu_seqio.write_clu_metric_summaries
write_global_batch_size = entries.write_global_batch_size
write_model_provenance = entries.write_model_provenance
write_model_structure = entries.write_model_structure
write_seqio_metric_summaries = clu_seqio.write_seqio_metric_summaries
write_summary_entry = entries.write_summary_entry
write_summary_tensor = entries.write_summary_tensor
write_total_num_params = entries.write_total_num_params
