"""Train a small transformer on the text of Python's reference manual, at any number of GPUs.

    python elastic_language_model.py
    python -m runai.elastic.run --min 1 --max 4 elastic_language_model.py
    torchrun --nproc-per-node 2 elastic_language_model.py
    runai submit writer --elastic --workers 4 -- python elastic_language_model.py

Lines differ in length, so the loss is a mean over characters, not over lines: the loader counts the
characters (`count`), and each micro-batch is weighted by its count. The mean over an update is then
exact for every division of its lines; a mean of the micro-batches' means is not.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import runai.elastic
import runai.elastic.torch as elastic

PADDING = 0
CHARACTERS = 128
LONGEST = 64
VALIDATION_LINES = 64


def read_lines(count):
    """Return lines of the manual in Python's library, as ASCII codes; the last are held out."""
    text = (line.strip() for topic in sorted(topics) for line in topics[topic].splitlines())
    lines = [line.encode("ascii", "replace")[:LONGEST] for line in text if len(line) > 1]
    return [torch.frombuffer(bytearray(line), dtype=torch.uint8).long() for line in lines[:count]]


def pad(lines):
    """Stack lines of different length in one tensor; the loss ignores the padding."""
    return pad_sequence(lines, batch_first=True, padding_value=PADDING)


class Writer(nn.Module):
    """A transformer of two layers with causal attention."""

    def __init__(self, width=48):
        """Build the layers; `width` is the length of a character's vector."""
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.next = nn.Linear(width, CHARACTERS)

    def forward(self, line):
        """Return the scores of the next character at each position."""
        length = line.shape[1]
        before = nn.Transformer.generate_square_subsequent_mask(length, device=line.device)
        x = self.characters(line) + self.places.weight[:length]
        return self.next(self.layers(x, mask=before, is_causal=True))


def loss_of(model, lines):
    """Return the mean loss over all characters except each line's first."""
    scores = model(lines[:, :-1])
    return nn.functional.cross_entropy(scores.transpose(1, 2), lines[:, 1:], ignore_index=PADDING)


def count_characters(lines):
    """Return the number of characters that the loss of a micro-batch averages."""
    return int((lines[:, 1:] != PADDING).sum())


def main():
    """Train, and print the loss on the held-out lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lines", type=int, default=1100)
    options = parser.parse_args()

    elastic.init(64, 16)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines = read_lines(options.lines)
    model = Writer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    job = elastic.Job(model, optimizer)
    loader = elastic.DataLoader(lines[:-VALIDATION_LINES], collate_fn=pad, count=count_characters)

    for epoch in job.epochs(options.epochs):
        for batch in loader:
            job.backward(loss_of(job.model, batch.to(device)))
            job.step(clip_norm=1.0)
        if runai.elastic.master:
            print(f"epoch {epoch + 1}: {runai.elastic.gpus} at work", flush=True)

    if runai.elastic.master:
        with torch.no_grad():
            validation_loss = loss_of(model, pad(lines[-VALIDATION_LINES:]).to(device))
        print(
            f"after {job.update} updates: loss {validation_loss:.4f}, as if choosing among"
            f" {validation_loss.exp():.1f} characters",
            flush=True,
        )


if __name__ == "__main__":
    main()
