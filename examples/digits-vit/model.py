"""A small Vision Transformer for 8x8 images, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention and a perceptron, each after its layer norm and around a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)  # [batch, heads, tokens, width / heads]
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class DigitsViT(nn.Module):
    """Classifies `images` [batch, 1, 8, 8], from 0 to 1, into ten digits.

    `forward(images, labels)` returns the loss, mean cross-entropy with smoothed labels, and the logits [batch, 10].
    """

    def __init__(self, width=48, depth=3, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=2, padding=1)  # 4 x 4 patches that overlap by half
        self.position = nn.Parameter(0.02 * torch.randn(1, 4 * 4, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images, labels):
        x = self.patches(images - 0.5).flatten(2).transpose(1, 2) + self.position  # [batch, patches, width]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x).mean(1))
        return F.cross_entropy(logits, labels, label_smoothing=0.1), logits
