# SPDX-License-Identifier: Apache-2.0
"""Video tokenizer (MAGVIT-v2): encoder, quantizer, decoder, discriminator."""
