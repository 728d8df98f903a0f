"""A mixture of experts as a list of modules, each given the tokens that chose it."""

import torch
from team import draw_text, predict_next, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)
        )

    def forward(self, x, chosen, weights):
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, turn = (chosen == number).nonzero(as_tuple=True)
            y = y.index_add(0, token, expert(x[token]) * weights[token, turn, None])
        return y


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(16, 4, bias=False), Experts()

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return self.experts(x, chosen, weights)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.moe, self.head = nn.Embedding(50, 16), Mixture(), nn.Linear(16, 50)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.moe(x.flatten(0, 1)).view_as(x))


start()
model = DistributedDataParallel(Model())
train(model, draw_text(1, 50, (8, 13)), lambda text: predict_next(model(text[:, :-1]), text))
