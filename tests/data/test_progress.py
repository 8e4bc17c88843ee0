from __future__ import annotations

from dpfed.data import progress


class Heard:
    def __init__(self):
        self.steps, self.done = [], []

    def begin(self, what, total):
        self.steps.append((what, total))
        return self.done.append


def test_a_listener_hears_of_every_part():
    heard = Heard()
    with progress.listen(heard):
        items = list(progress.follow(range(progress.CHUNK + 5), "reading", progress.CHUNK + 5))
    assert len(items) == progress.CHUNK + 5
    assert heard.steps == [("reading", progress.CHUNK + 5)]
    assert heard.done == [progress.CHUNK, 5]


def test_nobody_listens_after_the_block():
    heard = Heard()
    with progress.listen(heard):
        pass
    assert list(progress.follow([1, 2], "reading")) == [1, 2]
    assert heard.steps == []
