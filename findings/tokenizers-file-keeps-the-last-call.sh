#!/usr/bin/env bash
# tokenizers 0.23.3, transformers 5.23.0: calling a fast tokenizer with `padding` or `truncation` sets them on the tokenizer itself,
# and `save_pretrained` writes what the last call left. tokenizer.json differs before and after a batch was tokenised, and
# is back after a call without them. Who loads that file with `tokenizers` alone cuts and pads every text.
#
# Seen: after a call with max_length=5, tokenizer.json has "truncation": {"max_length": 5, ...}; after a plain call, null
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check tokenizers==0.23.3 transformers==5.23.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import json
import os
import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[PAD]": 2}, unk_token="[PAD]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")


def saved():
    folder = tempfile.mkdtemp()
    fast.save_pretrained(folder)
    with open(os.path.join(folder, "tokenizer.json")) as file:
        return json.load(file)


first = saved()
fast(["a b", "a"], padding=True, truncation=True, max_length=5)
called = saved()
print("truncation:", first["truncation"], "->", called["truncation"])
assert first["truncation"] is None
assert called["truncation"]["max_length"] == 5, "a call leaves no trace in the file any more"
assert called["padding"] is not None
fast("a b")
assert saved() == first
PYTHON
