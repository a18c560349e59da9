"""Further models that training steps are measured on: nothing is tuned for them. Random weights, dropout 0, as in `workloads`,
which lists them after its own four:

    python -m headwater_tools.workloads DIR convnext gpt2
    python -m headwater_tools.compare DIR convnext gpt2 --headwater … --modes "eager f32" --precisions f32
"""

import torch
import transformers as tf
from torch import nn

from .families import ImageLoss, TextLoss


class SpeechLoss(nn.Module):
    """A classifier of waveforms, or a model that writes down what is said in spectrograms."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, sound, labels):
        out = self.model(**{self.model.main_input_name: sound}, labels=labels)
        return out.loss, out.logits


def images(batch, size):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, 3, size, size, generator=generator), torch.randint(1000, (batch,), generator=generator)


def tokens(batch, count, vocabulary):
    ids = torch.randint(vocabulary, (batch, count), generator=torch.Generator().manual_seed(0))
    return ids, ids.clone()


def sound(shape, labels, below):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator), torch.randint(below, labels, generator=generator)


def resnet50():
    """ResNet-50 at 224, batch 4."""
    return ImageLoss(tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000))), images(4, 224)


def convnext():
    """ConvNeXt-Tiny at 224, batch 4."""
    config = tf.ConvNextConfig(num_labels=1000, drop_path_rate=0.0)
    return ImageLoss(tf.ConvNextForImageClassification(config)), images(4, 224)


def mobilenet():
    """MobileNetV2 at 224, batch 8."""
    config = tf.MobileNetV2Config(num_labels=1000, classifier_dropout_prob=0.0)
    return ImageLoss(tf.MobileNetV2ForImageClassification(config)), images(8, 224)


def efficientnet():
    """EfficientNet-B0 at 224, batch 4."""
    config = tf.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280, num_labels=1000, dropout_rate=0.0,
        drop_connect_rate=0.0,
    )
    return ImageLoss(tf.EfficientNetForImageClassification(config)), images(4, 224)


def swin():
    """A Swin of 2 layers a stage at 224, batch 4."""
    config = tf.SwinConfig(num_labels=1000, drop_path_rate=0.0, depths=[2, 2, 2, 2])
    return ImageLoss(tf.SwinForImageClassification(config)), images(4, 224)


def segformer():
    """The encoder of SegFormer-B0 as a classifier at 224, batch 4."""
    config = tf.SegformerConfig(
        num_labels=1000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )
    return ImageLoss(tf.SegformerForImageClassification(config)), images(4, 224)


def gpt2():
    """A GPT-2 of 6 layers (d 512, vocabulary 50,257), 4 × 256 tokens."""
    config = tf.GPT2Config(n_layer=6, n_embd=512, n_head=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return TextLoss(tf.GPT2LMHeadModel(config)), tokens(4, 256, 50257)


def phi():
    """A Phi of 4 layers (d 512, vocabulary 32,000), 4 × 256 tokens."""
    config = tf.PhiConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8, resid_pdrop=0.0,
        embd_pdrop=0.0, use_cache=False,
    )
    return TextLoss(tf.PhiForCausalLM(config)), tokens(4, 256, 32000)


def t5():
    """T5-Small, 4 × 128 tokens."""
    config = tf.T5Config(dropout_rate=0.0, use_cache=False, decoder_start_token_id=0)
    return TextLoss(tf.T5ForConditionalGeneration(config)), tokens(4, 128, 32128)


def whisper():
    """A Whisper of 2 + 2 layers (d 384), one spectrogram of 3000 frames, 64 tokens."""
    config = tf.WhisperConfig(
        encoder_layers=2, decoder_layers=2, d_model=384, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )
    return SpeechLoss(tf.WhisperForConditionalGeneration(config)), sound((1, 80, 3000), (1, 64), 50000)


def wav2vec2():
    """A wav2vec 2.0 of 4 layers, two waveforms of 32,000 samples."""
    config = tf.Wav2Vec2Config(
        num_hidden_layers=4, hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0,
        final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False, num_labels=8,
    )
    return SpeechLoss(tf.Wav2Vec2ForSequenceClassification(config)), sound((2, 32000), (2,), 8)


FURTHER = {
    f.__name__: f
    for f in (resnet50, convnext, mobilenet, efficientnet, swin, segformer, gpt2, phi, t5, whisper, wav2vec2)
}
