"""Writes small tokenizers of the usual kinds, with added and special tokens, and their tokens of odd texts:
`python -m headwater_tools.tokenizers FOLDER`.

Each is trained here, saved by `save_pretrained` of transformers, and read again as Headwater reads it: `KIND.json` is the
`tokenizer.json`, `ids.json` has the texts and the tokens of all kinds.
"""

import json
import pathlib
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .patterns import KNOWN, TEXTS

CORPUS = [
    "hello world, hello there! it's the thing that they've got, 12 345 of them.",
    "The quick brown fox jumps over the lazy dog. Straße naïve café 日本語 x² ½",
    "a_b a-b don't you'll we're I'm hello hello world world there there",
]
OWN = ["hello <mask> world", "<extra_0>the<extra_0> thing", "a<tool>b <tool> c", "hello</s>there", "ABC MiXed <MASK>"]


def bert():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", t.token_to_id("[CLS]")), ("[SEP]", t.token_to_id("[SEP]"))])
    t.decoder = decoders.WordPiece()
    return t, dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")


def byte_level(split=None):
    t = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    t.pre_tokenizer = level if split is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), level])
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    t.decoder, t.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    return t, dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>")


def llama():
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return t, dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def t5():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                      show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    t.decoder = decoders.Metaspace()
    return t, dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def words(pattern):
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Replace(Regex(r"\B\d\b"), "#")
    t.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    t.train_from_iterator(CORPUS + TEXTS, trainers.WordLevelTrainer(vocab_size=400, special_tokens=["<pad>", "<unk>"]))
    return t, dict(pad_token="<pad>", unk_token="<unk>")


def clip():
    t = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(KNOWN["clip"]), "removed", invert=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>",
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    t.post_processor = processors.RobertaProcessing(
        ("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    return t, dict(bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>")


KINDS = {
    "bert": bert,
    "gpt2": byte_level,
    "llama": llama,
    "llama3": lambda: byte_level(KNOWN["llama3"]),
    "t5": t5,
    "clip": clip,
    "words": lambda: words(r"\w+|[^\w\s]+"),
    "bounds": lambda: words(r"\b|^\s|[[:punct:]]"),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    texts = [t for t in TEXTS + OWN if t.strip() and "\x00" not in t]
    ids = {}
    for kind, make in KINDS.items():
        tokenizer, special = make()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
        fast.add_special_tokens({"additional_special_tokens": ["<extra_0>"]})
        fast.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<tool>", single_word=True),
                         AddedToken("MiXed", normalized=True, rstrip=True)])
        with tempfile.TemporaryDirectory() as saved:
            fast.save_pretrained(saved)
            text = (pathlib.Path(saved) / "tokenizer.json").read_text()
        (folder / f"{kind}.json").write_text(json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) + "\n")
        read = Tokenizer.from_file(str(folder / f"{kind}.json"))
        read.no_padding()
        read.no_truncation()
        ids[kind] = [read.encode(t).ids for t in texts]
    (folder / "ids.json").write_text(json.dumps({"texts": texts, "ids": ids}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
