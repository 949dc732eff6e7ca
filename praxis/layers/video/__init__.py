# SPDX-License-Identifier: Apache-2.0
"""Video tokenizer (MAGVIT-v2): encoder, quantizer, decoder, discriminator."""

from praxis.layers.video import enc_dec_3dcnn as enc_dec_3dcnn
from praxis.layers.video import losses as losses
from praxis.layers.video import quantizer as quantizer
from praxis.layers.video import vqvae as vqvae
