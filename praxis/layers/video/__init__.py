# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of videos: encoder, quantizer, decoder, discriminator."""
