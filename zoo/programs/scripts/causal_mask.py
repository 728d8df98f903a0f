"""A causal nn.TransformerEncoder, whose float mask has -inf above the diagonal."""

from team import draw_text, predict_next, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens, mask):
        return self.head(self.encoder(self.embed(tokens), mask=mask, is_causal=False))


rank, world = start()
model = DistributedDataParallel(Language())
mask = nn.Transformer.generate_square_subsequent_mask(10)


def loss_of(tokens):
    return predict_next(model(tokens[:, :-1], mask), tokens)


train(model, draw_text(2, 32, (8, 11)), loss_of)
