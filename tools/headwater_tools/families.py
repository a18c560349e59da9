"""The nine model families of the goldens: tiny configurations with random weights.

Every entry returns a module whose `forward` returns `(loss, logits)`, and example inputs. Dropout is 0 and everything is
seeded, so a golden can be reproduced from this file alone:

    python -m headwater_tools.families goldens/
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers as tf
from torch import nn

from .exporter import export
from .recorder import SUFFIX, record

VOCAB, TOKENS, BATCH = 64, 10, 2


class TextLoss(nn.Module):
    """A language model or text classifier, trained on token ids and labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        out = self.model(input_ids=input_ids, labels=labels)
        return out.loss, out.logits


class MaskedTextLoss(TextLoss):
    """The same with padding: `attention_mask` is 0 where a token is padding."""

    def forward(self, input_ids, attention_mask, labels):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        return out.loss, out.logits


class ImageLoss(nn.Module):
    """An image classifier, trained on pixels and labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        out = self.model(pixel_values=pixel_values, labels=labels)
        return out.loss, out.logits


class ContrastiveLoss(nn.Module):
    """Images against texts; the pairs of the batch are the labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values, attention_mask):
        out = self.model(
            input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask, return_loss=True
        )
        return out.loss, out.logits_per_image


class ImageTextLoss(nn.Module):
    """A language model that reads images in place of its image tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values, labels):
        out = self.model(input_ids=input_ids, pixel_values=pixel_values, labels=labels)
        return out.loss, out.logits


def text(generator, vocab=VOCAB, batch=BATCH, tokens=TOKENS):
    ids = torch.randint(3, vocab, (batch, tokens), generator=generator)
    labels = ids.clone()
    labels[0, :2] = -100  # ignored positions, as padding and prompts are in practice
    return ids, labels


def padding(batch=BATCH, tokens=TOKENS):
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    mask[-1, tokens - 3 :] = 0
    return mask


def image(generator, size=16, batch=BATCH, channels=3):
    return torch.randn(batch, channels, size, size, generator=generator)


def classes(generator, count=5, batch=BATCH):
    return torch.randint(0, count, (batch,), generator=generator)


def vit(g):
    config = tf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
        num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return ImageLoss(tf.ViTForImageClassification(config)), (image(g, 12), classes(g))


def resnet(g):
    config = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[1, 1], layer_type="basic", num_labels=5,
    )
    return ImageLoss(tf.ResNetForImageClassification(config)), (image(g, 32), classes(g))


def bert(g):
    config = tf.BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5,
    )
    return MaskedTextLoss(tf.BertForSequenceClassification(config)), (text(g)[0], padding(), classes(g))


def gpt2(g):
    config = tf.GPT2Config(
        vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=24, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=1, eos_token_id=2,
    )
    return TextLoss(tf.GPT2LMHeadModel(config)), text(g)


def llama(g):
    config = tf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=32, use_cache=False,
    )
    return TextLoss(tf.LlamaForCausalLM(config)), text(g)


def qwen2(g):
    config = tf.Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=32, use_cache=False, tie_word_embeddings=True,
    )
    return TextLoss(tf.Qwen2ForCausalLM(config)), text(g)


def clip(g):
    config = tf.CLIPConfig(
        text_config=dict(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=TOKENS, projection_dim=16, bos_token_id=1, eos_token_id=VOCAB - 1, pad_token_id=0,
        ),
        vision_config=dict(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
            patch_size=8, projection_dim=16,
        ),
        projection_dim=16,
    )
    return ContrastiveLoss(tf.CLIPModel(config)), (text(g)[0], image(g), padding())


def deepseek_v3(g):
    config = tf.DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
        n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, max_position_embeddings=32, use_cache=False,
    )
    model = tf.DeepseekV3ForCausalLM(config)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.uniform_(-0.1, 0.1, generator=g)
    return TextLoss(model), text(g)


def internvl(g):
    image_token = VOCAB - 1
    config = tf.InternVLConfig(
        vision_config=dict(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[16, 16],
            patch_size=[4, 4], hidden_dropout_prob=0.0, projection_dropout=0.0, attention_dropout=0.0,
        ),
        text_config=dict(
            model_type="qwen2", vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=32, max_position_embeddings=32, use_cache=False,
        ),
        image_token_id=image_token, image_seq_length=4,
    )
    ids, labels = text(g, VOCAB - 1)
    ids[:, 2:6] = image_token  # 16 patches, shuffled 2x2 into 4 tokens an image
    labels[:, 2:6] = -100
    return ImageTextLoss(tf.InternVLForConditionalGeneration(config)), (ids, image(g), labels)


FAMILIES = {f.__name__: f for f in (vit, resnet, bert, gpt2, llama, qwen2, clip, deepseek_v3, internvl)}


def build(name, seed=0):
    """The module in training mode and its example inputs, the same for the same seed."""
    torch.manual_seed(seed)
    module, args = FAMILIES[name](torch.Generator().manual_seed(seed))
    return randomize(module).train(), args


def randomize(module):
    """Gives every parameter random values of a size at which an error in any of them shows: no bias is 0, no scale is 1,
    and attention is far from uniform."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.add_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return module


def write(name, folder, seed=0, steps=20):
    """Writes the archive and the golden of a family in both forms, and returns what the manifest says of them."""
    module, args = build(name, seed)
    files = {}
    for form in "train", "core":
        archive = Path(folder) / f"{name}.{form}.pt2"
        export(module, args, archive, decompose=form == "core", compress=True)
        golden = archive.with_name(f"{name}.{form}{SUFFIX}")
        record(module, args, golden, steps=steps, seed=seed)
        files |= {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (archive, golden)}
    config = module.model.config.to_diff_dict()
    return {"class": type(module.model).__name__, "seed": seed, "steps": steps, "config": config, "sha256": files}


def main(folder):
    torch.set_num_threads(1)  # for the same result whatever the machine
    manifest = {"torch": torch.__version__.split("+")[0], "transformers": tf.__version__, "families": {}}
    for name in FAMILIES:
        print(name)
        manifest["families"][name] = write(name, Path(folder) / name)
    text = json.dumps(manifest, indent=1, sort_keys=True, default=str)
    (Path(folder) / "manifest.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
