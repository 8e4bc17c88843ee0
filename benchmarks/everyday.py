"""Models as readers of torch's tutorials and examples type them: stock layers, default layouts, nothing made for us.

Each is a small version of our own, so that plain SGD takes some milliseconds. Records have the example as first axis,
because a DataLoader gives them so; a model in torch's default layout (positions first) turns them itself. ``source``
says whose readers would write it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

WORDS, LENGTH, CLASSES = 5000, 40, 4


@dataclass(frozen=True)
class Model:
    """A model, the records that it is trained on, and its loss for each record."""

    title: str
    build: Callable[[], nn.Module]
    records: Callable[[int], tuple[Any, Tensor]]  # so many of them: inputs and targets
    loss: Callable[[Any, Tensor], Tensor]
    source: str = ""
    is_random: bool = False  # besides dropout, so that no two passes are the same


# --- records and losses ---


def sentences(count: int, *, words: int = WORDS, length: int = LENGTH, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(0))
    return draw(words, (count, length)), draw(classes, (count,))


def texts(count: int, *, words: int = WORDS, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return words, and the words that follow them."""
    found, _ = sentences(count, words=words, length=length + 1)
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def pairs(count: int, *, words: int = WORDS, lengths: tuple[int, int] = (30, 20)) -> tuple[Any, Tensor]:
    """Return two sentences for each record, and its class."""
    (one, target), (two, _) = (sentences(count, words=words, length=length) for length in lengths)
    return (one, two), target


def translations(count: int) -> tuple[Any, Tensor]:
    (source, _), (target, following) = sentences(count, words=1000, length=24), texts(count, words=1000, length=20)
    return (source, target), following


def with_lengths(count: int) -> tuple[Any, Tensor]:
    tokens, target = sentences(count)
    return (tokens, torch.randint(5, LENGTH + 1, (count,), generator=torch.Generator().manual_seed(1))), target


def images(count: int, *, shape: tuple[int, ...], classes: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand((count, *shape), generator=generator), torch.randint(classes, (count,), generator=generator)


def real_or_not(count: int) -> tuple[Tensor, Tensor]:
    pictures, label = images(count, shape=(3, 32, 32), classes=2)
    return pictures, label.float()


def same_pixels(count: int) -> tuple[Tensor, Tensor]:
    pictures, _ = images(count, shape=(1, 28, 28))
    return pictures, pictures.flatten(1)


def enlarged(count: int) -> tuple[Tensor, Tensor]:
    return images(count, shape=(1, 16, 16))[0], images(count, shape=(1, 48, 48))[0]


def waves(count: int) -> tuple[Tensor, Tensor]:
    found = torch.rand((count, 31), generator=torch.Generator().manual_seed(0))
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def letters(count: int) -> tuple[Tensor, Tensor]:
    tokens, target = sentences(count, words=57, length=16, classes=18)
    return functional.one_hot(tokens, 57).float(), target


classified = nn.CrossEntropyLoss(reduction="none")
likely = nn.NLLLoss(reduction="none")
real = nn.BCELoss(reduction="none")


def squared(found: Tensor, wanted: Tensor) -> Tensor:
    return functional.mse_loss(found, wanted, reduction="none").flatten(1).mean(1)


def next_words(scores: Tensor, wanted: Tensor) -> Tensor:
    """Of scores with the example first."""
    return functional.cross_entropy(scores.transpose(1, 2), wanted, reduction="none").mean(1)


def next_words_by_position(scores: Tensor, wanted: Tensor) -> Tensor:
    """Of scores with the position first, as torch's layers give them."""
    return functional.cross_entropy(scores.permute(1, 2, 0), wanted, reduction="none").mean(1)


def reconstructed(found: tuple[Tensor, Tensor, Tensor], wanted: Tensor) -> Tensor:
    pixels, mean, log_variance = found
    entropy = functional.binary_cross_entropy(pixels, wanted, reduction="none").sum(1)
    return entropy - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1)


# --- text ---


class TextCNN(nn.Module):
    """Convolutions of three widths over the same embedding, pooled over time."""

    def __init__(self, size: int = 64, channels: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.convs = nn.ModuleList([nn.Conv2d(1, channels, (width, size)) for width in (3, 4, 5)])
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(3 * channels, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).unsqueeze(1)
        maps = [functional.relu(conv(x)).squeeze(3) for conv in self.convs]
        pooled = [functional.max_pool1d(found, found.size(2)).squeeze(2) for found in maps]
        return self.fc(self.dropout(torch.cat(pooled, 1)))


class ResidualEmbedding(nn.Module):
    """An embedding whose output goes into a block and around it."""

    def __init__(self, words: int = WORDS, size: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.fc1, self.fc2 = nn.Linear(size, size), nn.Linear(size, size)
        self.out = nn.Linear(size, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.fc2(torch.relu(self.fc1(x)))
        return self.out(x.mean(1))


class BiLSTM(nn.Module):
    """The last states of both directions, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.lstm = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1))


class GRUClassifier(nn.Module):
    """torch's default layout, positions first, or the other one."""

    def __init__(self, *, batch_first: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.gru = nn.GRU(64, 128, batch_first=batch_first)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        _, hidden = self.gru(self.embedding(tokens if self.gru.batch_first else tokens.t()))
        return self.fc(hidden[-1])


class PositionalEncoding(nn.Module):
    """Sines and cosines, added to (position, example, feature)."""

    def __init__(self, size: int, dropout: float = 0.1, longest: int = 200) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10000.0) / size))
        table = torch.zeros(longest, 1, size)
        table[:, 0, 0::2] = torch.sin(position * rates)
        table[:, 0, 1::2] = torch.cos(position * rates)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.table[: x.size(0)])


class EncoderClassifier(nn.Module):
    """Two layers of nn.TransformerEncoder, the mean over positions classified."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.positions = PositionalEncoding(size)
        layer = nn.TransformerEncoderLayer(d_model=size, nhead=4, dim_feedforward=128)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.fc = nn.Linear(size, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.positions(self.embedding(tokens.t()) * math.sqrt(64))
        return self.fc(self.encoder(x).mean(0))


class EncoderByBatch(nn.Module):
    """The same with batch_first=True; with learned positions, if asked, as a parameter of the model."""

    def __init__(self, *, is_learned: bool, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        table = torch.randn(1, LENGTH, size) * 0.02
        if is_learned:
            self.positions = nn.Parameter(table)
        else:
            self.register_buffer("positions", table)
        layer = nn.TransformerEncoderLayer(d_model=size, nhead=4, dim_feedforward=128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.fc = nn.Linear(size, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embedding(tokens) + self.positions)[:, 0])


class EncoderLanguageModel(nn.Module):
    """The next word by nn.TransformerEncoder with a causal mask."""

    def __init__(self, words: int = 1000, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.positions = PositionalEncoding(size, 0.2)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(size, 2, 128, 0.2), 2)
        self.decoder = nn.Linear(size, words)
        self.size = size

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.positions(self.embedding(tokens.t()) * math.sqrt(self.size))
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return self.decoder(self.encoder(x, mask))


class LSTMLanguageModel(nn.Module):
    """The next word by two layers of LSTM, with dropout between them."""

    def __init__(self, *, is_tied: bool = False, batch_first: bool = False, words: int = 1000, size: int = 96) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size, 2, dropout=0.2, batch_first=batch_first)
        self.decoder = nn.Linear(size, words)
        if is_tied:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.rnn(self.drop(self.encoder(tokens if self.rnn.batch_first else tokens.t())))
        return self.decoder(self.drop(output))


class Seq2Seq(nn.Module):
    """nn.Transformer between two embeddings, as in the translation tutorial."""

    def __init__(self, words: int = 1000, size: int = 64) -> None:
        super().__init__()
        self.transformer = nn.Transformer(size, 4, 2, 2, dim_feedforward=128, dropout=0.1)
        self.source, self.target = nn.Embedding(words, size), nn.Embedding(words, size)
        self.positions = PositionalEncoding(size)
        self.generator = nn.Linear(size, words)
        self.size = size

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        source, target = (tokens.t() for tokens in pair)
        mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        output = self.transformer(
            self.positions(self.source(source) * math.sqrt(self.size)),
            self.positions(self.target(target) * math.sqrt(self.size)),
            tgt_mask=mask,
        )
        return self.generator(output)


class Entailment(nn.Module):
    """One embedding and one bidirectional encoder for both sentences."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, size)
        self.projection = nn.Linear(size, size)
        self.rnn = nn.LSTM(size, size // 2, bidirectional=True)
        self.out = nn.Sequential(
            nn.Linear(2 * size, 2 * size), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * size, CLASSES)
        )

    def encode(self, tokens: Tensor) -> Tensor:
        x = torch.relu(self.projection(self.embed(tokens.t())))
        _, (hidden, _) = self.rnn(x)
        return hidden[-2:].transpose(0, 1).contiguous().view(tokens.size(0), -1)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.out(torch.cat([self.encode(tokens) for tokens in pair], 1))


class PackedGRU(nn.Module):
    """The chatbot tutorial's encoder: a bidirectional GRU over packed sentences, both directions added."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(WORDS, size)
        self.gru = nn.GRU(size, size, bidirectional=True)
        self.fc = nn.Linear(size, CLASSES)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        tokens, lengths = pair
        packed = pack_padded_sequence(self.embedding(tokens.t()), lengths.cpu(), enforce_sorted=False)
        _, hidden = self.gru(packed)
        return self.fc(hidden[0] + hidden[1])


class BagOfWords(nn.Module):
    """nn.EmbeddingBag and a Linear."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(20_000, size)
        self.fc = nn.Linear(size, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.embedding(tokens))


class NGram(nn.Module):
    """The next word from the embeddings of the last ones, side by side."""

    def __init__(self, context: int = 4, words: int = WORDS) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(words, 32)
        self.linear1 = nn.Linear(context * 32, 128)
        self.linear2 = nn.Linear(128, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings(tokens).view(len(tokens), -1)
        return functional.log_softmax(self.linear2(functional.relu(self.linear1(x))), dim=1)


class LetterRNN(nn.Module):
    """The names tutorial's own cell: two Linear layers called for every letter."""

    def __init__(self, letters: int = 57, hidden: int = 128, classes: int = 18) -> None:
        super().__init__()
        self.hidden = hidden
        self.i2h = nn.Linear(letters + hidden, hidden)
        self.h2o = nn.Linear(hidden, classes)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, names: Tensor) -> Tensor:
        hidden = torch.zeros(names.size(0), self.hidden)
        for place in range(names.size(1)):
            hidden = torch.tanh(self.i2h(torch.cat((names[:, place], hidden), 1)))
        return self.softmax(self.h2o(hidden))


class NameRNN(nn.Module):
    """The names tutorial as it is today: nn.RNN, positions first."""

    def __init__(self, letters: int = 57, hidden: int = 128, classes: int = 18) -> None:
        super().__init__()
        self.rnn = nn.RNN(letters, hidden)
        self.h2o = nn.Linear(hidden, classes)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, names: Tensor) -> Tensor:
        _, hidden = self.rnn(names.transpose(0, 1))
        return self.softmax(self.h2o(hidden[0]))


class Waves(nn.Module):
    """Two LSTM cells in a loop over time."""

    def __init__(self, hidden: int = 51) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm1, self.lstm2 = nn.LSTMCell(1, hidden), nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, series: Tensor) -> Tensor:
        h1, c1, h2, c2 = (torch.zeros(series.size(0), self.hidden) for _ in range(4))
        outputs = []
        for value in series.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


# --- images ---


class MnistNet(nn.Module):
    """The MNIST example: two convolutions, dropout, two Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 1), nn.Conv2d(16, 32, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(32 * 144, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(functional.max_pool2d(x, 2)), 1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


class MnistRNN(nn.Module):
    """An LSTM over the lines of a picture; LayerNorm for the example's BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(input_size=28, hidden_size=64, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.dropout = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x.reshape(-1, 28, 28))
        x = self.dropout(self.norm(output[:, -1, :]))
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=1)


class VAE(nn.Module):
    """Linear layers around a drawn code."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21, self.fc22 = nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = functional.relu(self.fc1(x.view(-1, 784)))
        mean, log_variance = self.fc21(hidden), self.fc22(hidden)
        std = torch.exp(0.5 * log_variance)
        code = mean + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(code)))), mean, log_variance


class Discriminator(nn.Module):
    """DCGAN's, GroupNorm for BatchNorm."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.GroupNorm(8, 2 * width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1, bias=False),
            nn.GroupNorm(8, 4 * width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x).view(-1)


class SuperResolution(nn.Module):
    """Convolutions and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 32, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(32, 32, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(32, 9, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        return self.pixel_shuffle(self.conv3(x))


class Block(nn.Module):
    """Attention and an MLP, each with its norm and its way around."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, learned positions, four blocks."""

    def __init__(self, size: int = 64, heads: int = 4, depth: int = 4, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(torch.randn(1, 1 + (32 // patch) ** 2, size) * 0.02)
        self.blocks = nn.Sequential(*(Block(size, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a way around."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, after)
        self.downsample = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(32, after))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


def resnet18() -> nn.Module:
    """The usual one of 11 million parameters, with GroupNorm."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for before, after in pairwise(widths)
        for block in (BasicBlock(before, after, 1 + (after > before)), BasicBlock(after, after, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NAMED = {  # by the plan of part 8
    "textcnn": Model("TextCNN", TextCNN, sentences, classified, "CNN for sentences"),
    "residual": Model("residual after an Embedding", ResidualEmbedding, sentences, classified),
    "bilstm": Model("bidirectional LSTM", BiLSTM, sentences, classified),
    "gru": Model("GRU, positions first", GRUClassifier, sentences, classified),
    "encoder": Model("nn.TransformerEncoder, two layers", EncoderClassifier, sentences, classified),
    "gru-batch": Model("GRU, batch_first", partial(GRUClassifier, batch_first=True), sentences, classified),
    "encoder-batch": Model(
        "nn.TransformerEncoder, batch_first", partial(EncoderByBatch, is_learned=False), sentences, classified
    ),
    "learned": Model(
        "nn.TransformerEncoder, learned positions", partial(EncoderByBatch, is_learned=True), sentences, classified
    ),
    "lstm-words": Model(
        "LSTM language model",
        LSTMLanguageModel,
        partial(texts, words=1000, length=32),
        next_words_by_position,
        "examples/word_language_model",
    ),
    "lstm-words-batch": Model(
        "LSTM language model, batch_first",
        partial(LSTMLanguageModel, batch_first=True),
        partial(texts, words=1000, length=32),
        next_words,
        "examples/word_language_model",
    ),
    "vit": Model("small ViT", ViT, partial(images, shape=(3, 32, 32)), classified, "examples/vision_transformer"),
    "resnet18": Model("ResNet18, GroupNorm", resnet18, partial(images, shape=(3, 64, 64)), classified, "torchvision"),
}
FOUND = {  # in torch's tutorials and examples
    "mnist": Model("MNIST's Net", MnistNet, partial(images, shape=(1, 28, 28)), likely, "examples/mnist"),
    "mnist-rnn": Model("MNIST by LSTM", MnistRNN, partial(images, shape=(1, 28, 28)), likely, "examples/mnist_rnn"),
    "vae": Model("VAE", VAE, same_pixels, reconstructed, "examples/vae", is_random=True),
    "dcgan": Model("DCGAN's discriminator", Discriminator, real_or_not, real, "examples/dcgan"),
    "super": Model("super-resolution", SuperResolution, enlarged, squared, "examples/super_resolution"),
    "tied-words": Model(
        "LSTM language model, tied weights",
        partial(LSTMLanguageModel, is_tied=True),
        partial(texts, words=1000, length=32),
        next_words_by_position,
        "examples/word_language_model --tied",
    ),
    "encoder-words": Model(
        "nn.TransformerEncoder language model",
        EncoderLanguageModel,
        partial(texts, words=1000, length=35),
        next_words_by_position,
        "tutorials/transformer_tutorial",
    ),
    "seq2seq": Model(
        "nn.Transformer, translation",
        Seq2Seq,
        translations,
        next_words_by_position,
        "tutorials/translation_transformer",
    ),
    "snli": Model("shared BiLSTM of two sentences", Entailment, pairs, classified, "examples/snli"),
    "packed": Model("packed bidirectional GRU", PackedGRU, with_lengths, classified, "tutorials/chatbot_tutorial"),
    "bag": Model(
        "EmbeddingBag",
        BagOfWords,
        partial(sentences, words=20_000),
        classified,
        "tutorials/text_sentiment_ngrams_tutorial",
    ),
    "ngram": Model(
        "n-gram language model",
        NGram,
        partial(sentences, length=4, classes=WORDS),
        likely,
        "tutorials/word_embeddings_tutorial",
    ),
    "letters": Model(
        "letters, a cell of Linear layers", LetterRNN, letters, likely, "tutorials/char_rnn_classification (2017)"
    ),
    "names": Model("letters, nn.RNN", NameRNN, letters, likely, "tutorials/char_rnn_classification_tutorial"),
    "waves": Model("two LSTMCells in a loop", Waves, waves, squared, "examples/time_sequence_prediction"),
}
