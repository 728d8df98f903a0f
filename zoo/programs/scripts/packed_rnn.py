"""A classifier of sequences of many lengths: an LSTM over a packed batch."""

import torch
from team import generate, share, start, train
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


def batches():
    random, mine = generate(), share(8)
    for _ in range(2):
        tokens = torch.randint(1, 50, (8, 12), generator=random)
        lengths = torch.randint(3, 13, (8,), generator=random)
        tokens[torch.arange(12) >= lengths[:, None]] = 0
        yield tokens[mine], lengths[mine], torch.randint(3, (8,), generator=random)[mine]


start()
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
train(model, batches(), lambda x, n, labels: F.cross_entropy(model(x, n), labels), optimizer)
